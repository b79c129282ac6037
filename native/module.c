/* The module webdataset._native: the usual case of what costs most, in C. webdataset.samples.native_core decides whether
   it is used; everything also exists in Python, which says what is right. */

#include "take_samples.c"
#include "indexed_samples.c"
#include "loader_rows.c"
#include "stage_gates.c"
#include "stream_states.c"

static PyMethodDef module_methods[] = {
    {"draw", (PyCFunction)draw, METH_VARARGS, draw_doc},
    {"find_address", find_address, METH_O, find_address_doc},
    {"gather", (PyCFunction)gather, METH_VARARGS, gather_doc},
#ifndef _WIN32
    {"is_unchanged", is_unchanged, METH_VARARGS, is_unchanged_doc},
    {"read_local_sample", (PyCFunction)(void (*)(void))read_local_sample, METH_FASTCALL, read_local_sample_doc},
#endif
    {"pack_values", pack_values, METH_O, pack_values_doc},
    {"sum_streams", (PyCFunction)(void (*)(void))sum_streams, METH_FASTCALL, sum_streams_doc},
    {"unpack_values", (PyCFunction)(void (*)(void))unpack_values, METH_FASTCALL, unpack_values_doc},
    {"write_steps", (PyCFunction)(void (*)(void))write_steps, METH_FASTCALL, write_steps_doc},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) return -1;
    int failed = PyModule_AddObjectRef(module, name, type);
    Py_DECREF(type);
    return failed;
}

static int start_module(PyObject *module)
{
    fill_crc_tables();
    if (add_type(module, "Taker", &Taker_spec) < 0) return -1;
    if (add_type(module, "Gate", &Gate_spec) < 0) return -1;
    if (add_type(module, "Outlet", &Outlet_spec) < 0) return -1;
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
