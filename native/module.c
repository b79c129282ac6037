/* The module webdataset._native: the usual case of what costs most, in C. webdataset.samples.native_core decides whether
   it is used; everything also exists in Python, which says what is right. */

#include "take_samples.c"
#include "indexed_samples.c"
#include "loader_rows.c"
#include "stream_states.c"

static PyMethodDef module_methods[] = {
    {"draw", (PyCFunction)draw, METH_VARARGS, draw_doc},
    {"gather", (PyCFunction)gather, METH_VARARGS, gather_doc},
#ifndef _WIN32
    {"is_unchanged", is_unchanged, METH_VARARGS, is_unchanged_doc},
    {"read_small_sample", (PyCFunction)(void (*)(void))read_small_sample, METH_FASTCALL, read_small_sample_doc},
#endif
    {"sum_streams", (PyCFunction)(void (*)(void))sum_streams, METH_FASTCALL, sum_streams_doc},
    {"write_steps", (PyCFunction)(void (*)(void))write_steps, METH_FASTCALL, write_steps_doc},
    {NULL, NULL, 0, NULL},
};

static int start_module(PyObject *module)
{
    fill_crc_tables();
    PyObject *type = PyType_FromModuleAndSpec(module, &Taker_spec, NULL);
    if (type == NULL) return -1;
    int failed = PyModule_AddObjectRef(module, "Taker", type);
    Py_DECREF(type);
    if (failed < 0) return -1;
    if (PyModule_AddStringConstant(module, "SOURCE", SOURCE) < 0) return -1;
    return PyModule_AddIntConstant(module, "PROTOCOL", PROTOCOL);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)start_module},
#ifdef FREE_THREADED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "webdataset._native",
    .m_doc = "The usual case of reading samples, of a loader's workers and of states, in C; webdataset.samples.native_core "
             "decides whether it is used.",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module_definition);
}
