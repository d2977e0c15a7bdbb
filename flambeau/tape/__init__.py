"""The tape under autograd: recording ops, running backward over them, histories of views written in place.

The public face is `flambeau.autograd`. May not know: the tensor class beyond its slots.
"""
