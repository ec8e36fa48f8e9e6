"""What a person can have done wrong, or what broke under them: errors that reach them as one message."""


class BlockscaleError(Exception):
    """Base of all errors whose message is written for the person at the command line."""

    exit_code = 1


class InputError(BlockscaleError):
    """The input is wrong and nothing was changed. The message names the input, the rule and the way out."""

    exit_code = 2


class IncompleteRunError(BlockscaleError):
    """The run could not finish, what was measured is saved and the same command continues it."""

    exit_code = 3
