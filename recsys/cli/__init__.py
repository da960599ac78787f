"""The `recsys` command: one module per verb, imported when the verb is called.

Everything at the top level of these modules is light (click and the standard library), so that help
and completion start at once; the numerical libraries are imported inside the callbacks.
"""
