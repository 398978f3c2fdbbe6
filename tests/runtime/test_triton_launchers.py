"""Launchers of Triton's, extensions of one name, keep their own functions."""

import shutil
import sysconfig
from pathlib import Path

import pytest
from triton.runtime import build

from tvdnn.runtime import triton_launchers as launchers

SOURCE = """
#include <Python.h>
static PyObject* launch(PyObject* self, PyObject* args) {{ return PyLong_FromLong({number}); }}
static PyMethodDef methods[] = {{ {{"launch", launch, METH_VARARGS, ""}}, {{NULL}} }};
static struct PyModuleDef module = {{ PyModuleDef_HEAD_INIT, "{name}", NULL, -1, methods }};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""
NAME = "tvdnn_test_launcher"
HEADER = Path(sysconfig.get_paths()["include"], "Python.h")
COMPILER = shutil.which("gcc") or shutil.which("clang")


@pytest.mark.skipif(not COMPILER or not HEADER.exists(), reason="compiles C for Python")
def test_a_launcher_loaded_again_is_not_the_one_loaded_after_it() -> None:
    """As kernels of two signatures are, one loaded before in this process, by two threads."""
    launchers.keep_launchers_apart()
    sources = [SOURCE.format(name=NAME, number=number) for number in (1, 2)]
    loaded = [build.compile_module_from_src(source, NAME) for source in sources * 2]
    assert [each.launch() for each in loaded] == [1, 2, 1, 2]


def test_triton_still_loads_extensions_where_it_did() -> None:
    """A version that does so elsewhere needs another look; from 3.7 on there is one launcher."""
    assert hasattr(getattr(build, launchers._LOADER), "__wrapped__")
