/* A libFuzzer target of the native core: the core is compiled into the program with coverage and sanitizers, Python is
   embedded, and coverage.py's check() reads each input with the core and without it. Run it by `python fuzz/coverage.py`. */

#include <stdio.h>
#include <stdlib.h>
/* it has the definitions that it needs of Python.h, under the limited interface; what is used here is part of it */
#include "../native/module.c"

#define HEAD 4 /* as in coverage_target.py */

size_t LLVMFuzzerMutate(unsigned char *data, size_t size, size_t most);

static PyObject *check;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    if (PyImport_AppendInittab("webdataset._native", PyInit__native) < 0) abort();
    Py_InitializeEx(0);
    PyObject *module = PyImport_ImportModule("coverage_target");
    if (module != NULL) check = PyObject_GetAttrString(module, "check");
    if (check == NULL) {
        PyErr_Print();
        exit(2);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    PyObject *done = PyObject_CallFunction(check, "y#", (const char *)data, (Py_ssize_t)size);
    if (done == NULL) {
        /* the two ways differ */
        PyErr_Print();
        abort();
    }
    Py_DECREF(done);
    return 0;
}

/* Writes the checksum of a header. */
static void set_checksum(unsigned char *header)
{
    unsigned int sum = 0;
    memset(header + 148, ' ', 8);
    for (int at = 0; at < BLOCK; at++) sum += header[at];
    for (int at = 153; at >= 148; at--, sum /= 8) header[at] = (unsigned char)('0' + sum % 8);
    header[154] = 0;
}

/* Changes an input anywhere, or one block of it; then most checksums are put right, or nothing after them is reached. */
size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t size, size_t most, unsigned int seed)
{
    size_t blocks = size > HEAD ? (size - HEAD) / BLOCK : 0;
    if (blocks > 0 && seed % 4 != 0) {
        LLVMFuzzerMutate(data + HEAD + (seed / 64) % blocks * BLOCK, BLOCK, BLOCK);
    }
    else {
        size = LLVMFuzzerMutate(data, size, most);
        blocks = size > HEAD ? (size - HEAD) / BLOCK : 0;
    }
    for (size_t each = 0; each < blocks && (seed / 4) % 8 != 0; each++) {
        unsigned char *header = data + HEAD + each * BLOCK;
        if (memcmp(header + 257, "ustar", 5) == 0) set_checksum(header);
    }
    return size;
}
