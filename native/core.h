/* What the parts of the native core share. They are compiled as one file, module.c. */

#ifndef WEBDATASET_CORE_H
#define WEBDATASET_CORE_H
#define PY_SSIZE_T_CLEAN
/* scripts/hatch_build.py defines it for Pythons without the global lock: they have no stable interface */
#ifndef FREE_THREADED
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#ifndef _WIN32
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

/* raised by one where the arguments or the result of a function change; native_core.py compares it */
#define PROTOCOL 6
#ifndef SOURCE
#define SOURCE "" /* digest of these files, where scripts/hatch_build.py compiles it */
#endif

#define BLOCK 512

/* In the place of Py_RETURN_NONE, _TRUE and _FALSE: those of 3.12 and later take no reference, as these objects are
   immortal there. What was compiled with them runs on 3.11, too, which would free None in the end. */
#define RETURN_NONE return Py_NewRef(Py_None)

/* A value of a dict, owned; NULL where there is none, or with an error. */
static PyObject *look_up(PyObject *dict, PyObject *name)
{
    PyObject *value = NULL;
#ifdef FREE_THREADED
    PyDict_GetItemRef(dict, name, &value);
#else
    value = PyDict_GetItemWithError(dict, name);
    Py_XINCREF(value);
#endif
    return value;
}

#if defined(FREE_THREADED) && defined(_MSC_VER)
#include <intrin.h>
#define SWAP(place, value) _InterlockedExchange((volatile long *)(place), (value))
#elif defined(FREE_THREADED)
#define SWAP(place, value) __atomic_exchange_n((place), (value), __ATOMIC_ACQ_REL)
#else
/* the global lock is held, but for what code of others does when objects are made or released */
static int swap(int *place, int value)
{
    int before = *place;
    *place = value;
    return before;
}
#define SWAP(place, value) swap((place), (value))
#endif

#endif
