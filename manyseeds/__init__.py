"""What all rooms share, and no algorithm."""

import os
import shlex
import sys


def own_checkout() -> str:
    """The folder of the checkout that is imported; ends a script of another one, in one line.

    `python DIR/x.py` puts DIR on the path, not the checkout, so what is installed is imported.
    """
    package = os.path.dirname(os.path.realpath(__file__))
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if script and not getattr(main, "__spec__", None):  # no prompt, notebook or `python -m`
        root = os.path.dirname(os.path.realpath(script))
        while root != os.path.dirname(root) and not os.path.isfile(f"{root}/manyseeds/digest.py"):
            root = os.path.dirname(root)
        other = os.path.join(root, "manyseeds")
        if os.path.isfile(f"{other}/digest.py") and not os.path.samefile(other, package):
            from manyseeds.errors import printable

            line = (
                f"error: {script}: is of the checkout {root}, but imports the manyseeds of "
                f"{os.path.dirname(package)}; set PYTHONPATH={shlex.quote(root)}, or install that "
                f"checkout: pip install -e {shlex.quote(root)}"
            )
            print(printable(line), file=sys.stderr)
            raise SystemExit(2)
    return os.path.dirname(package)


CHECKOUT = own_checkout()
