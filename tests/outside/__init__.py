"""Programs of others, written in the language and held against what their authors expect.

    python -m tests.outside                  everything, and the counts into docs/outside.md
    python -m tests.outside einsum onnx      some of it, counts to the terminal

Cases and expectations come from the installed packages when this runs; nothing of theirs is copied here. A case
passes when the compiled result is within the program's error bounds, and agrees with theirs within the tolerance of
their own tests, or within those bounds where they are wider. It is refused where the language cannot say it, with the
reason; a wrong result or a crash is a failure.
"""
