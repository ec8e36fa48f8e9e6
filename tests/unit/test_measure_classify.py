"""What people's logs show, and which status it is."""

from collections.abc import Callable

import pytest

from blockscale.measure.classify import classify, classify_text, first_lines
from blockscale.problem import TrialStatus

S = TrialStatus


@pytest.mark.parametrize(
    ("type_name", "message", "status", "poisoned"),
    [
        ("OutOfResources", "out of resource: shared memory, Required: 147456, Hardware limit: 101376.",
         S.OUT_OF_RESOURCES, False),
        ("OutOfResources", "out of resource: threads, Required: 2048, Hardware limit: 1024.",
         S.OUT_OF_RESOURCES, False),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB.", S.OUT_OF_RESOURCES, False),
        ("MemoryError", "", S.OUT_OF_RESOURCES, True),
        ("RuntimeError", "Triton Error [CUDA]: out of memory", S.LAUNCH_ERROR, False),
        ("RuntimeError", "PassManager::run failed", S.COMPILE_ERROR, False),
        ("RuntimeError", "Pipeline failed while executing [`TritonGPURemoveLayoutConversions` on 'builtin.module']",
         S.COMPILE_ERROR, False),
        ("PTXASError", "PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal (C7600)",
         S.COMPILE_ERROR, False),
        ("RuntimeError", "`ptxas` failed with error code 255", S.COMPILE_ERROR, False),
        ("JSONDecodeError", "Expecting value: line 1 column 1 (char 0)", S.COMPILE_ERROR, False),
        ("CompilationError", "at 40:15: AssertionError: input dtypes", S.COMPILE_ERROR, False),
        ("ValueError", "type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15',)",
         S.COMPILE_ERROR, False),
        ("RuntimeError", "Triton Error [CUDA]: an illegal memory access was encountered", S.ILLEGAL_ACCESS, True),
        ("AcceleratorError", "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be",
         S.ILLEGAL_ACCESS, True),
        ("RuntimeError", "CUDA error: misaligned address", S.ILLEGAL_ACCESS, True),
        ("AcceleratorError", "CUDA error: device-side assert triggered", S.LAUNCH_ERROR, True),
        ("RuntimeError", "CUDA error: unspecified launch failure", S.LAUNCH_ERROR, True),
        ("RuntimeError", "HIP error: hipErrorIllegalAddress", S.ILLEGAL_ACCESS, True),
        ("RuntimeError", "CUDA error: operation not permitted when stream is capturing", S.LAUNCH_ERROR, False),
        ("RuntimeError", "Triton Error [CUDA]: invalid argument", S.LAUNCH_ERROR, False),
    ],
)  # fmt: skip
def test_known_failures(type_name: str, message: str, status: TrialStatus, poisoned: bool) -> None:
    failure = classify_text(type_name, message)
    assert failure is not None
    assert (failure.status, failure.poisoned) == (status, poisoned)
    assert failure.message.startswith(type_name)


def test_what_no_rule_knows_is_no_failure_by_itself() -> None:
    assert classify_text("RuntimeError", "the sky is falling") is None


def test_an_unknown_error_of_the_compiler_is_kept_with_its_type_and_message() -> None:
    failure = classify(RuntimeError("the sky is falling"), TrialStatus.LAUNCH_ERROR)
    assert failure.status is TrialStatus.LAUNCH_ERROR
    assert failure.message == "RuntimeError: the sky is falling"


def caught(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_mistake_in_our_own_code_is_raised() -> None:
    mistake = caught(lambda: first_lines(None))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        classify(mistake, TrialStatus.LAUNCH_ERROR)


def test_a_python_error_from_elsewhere_is_the_candidates_failure() -> None:
    error = caught(lambda: {}["inside a library"])
    assert classify(error, TrialStatus.COMPILE_ERROR).status is TrialStatus.COMPILE_ERROR


def test_messages_are_cut_to_their_first_lines() -> None:
    assert first_lines("\n error: a \n\n b\nc\nd") == "error: a | b | c"
    assert len(first_lines("x" * 10_000)) == 400
