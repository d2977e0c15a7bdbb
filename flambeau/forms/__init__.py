"""Public call forms written by hand over declared ops: several signatures under one name, sizes one by one, results with named fields.

The rules stay in the ops; what is here is the dispatch that Python's own signatures cannot say.
"""
