/* Reads a sample of small plain members of a local file by its number: webdataset.index.small_samples says what is right.
   It keeps no state, and raises no error but MemoryError, and TypeError for a number that is none: anything unusual is
   None, and the caller reads the sample in the way that judges. */

#include "core.h"

#ifndef _WIN32
/* as in small_samples.py: from here on, one more read is cheaper than one more copy */
#define MOST_IN_A_SAMPLE (32 * 1024)

/* What stands where in the tuple that describes an open file. */
enum {
    FILE_DESCRIPTOR, FILE_LENGTH, FILE_CHANGED, KEYS, KEY_ENDS, FIELD_ENDS, OFFSETS, SIZES, KINDS, NAMES, FIELDS_EACH,
    KEY_BYTES, SPARSE, URL, DESCRIBED
};
#define COLUMNS (KINDS - KEYS + 1)

/* Where a sample lies. */
typedef struct {
    const char *key;
    Py_ssize_t key_length;
    uint64_t first, last; /* its fields */
    uint64_t start, size; /* from its first header to the end of its last payload */
} Place;

static uint64_t number_at(const Py_buffer *column, uint64_t at)
{
    return ((const uint64_t *)column->buf)[at];
}

static uint64_t numbers_in(const Py_buffer *column)
{
    return (uint64_t)column->len / sizeof(uint64_t);
}

/* Find a sample; 0 where the columns do not have it, or it is large or strange. */
static int find_place(const Py_buffer *columns, uint64_t ordinal, uint64_t each, uint64_t width, Place *place)
{
    const Py_buffer *keys = columns, *key_ends = columns + 1, *field_ends = columns + 2;
    const Py_buffer *offsets = columns + 3, *sizes = columns + 4, *kinds = columns + 5;
    uint64_t rows = numbers_in(offsets), begin, end;
    if (ordinal >= numbers_in(key_ends) || ordinal >= numbers_in(field_ends)) return 0;
    if (numbers_in(sizes) != rows || (uint64_t)kinds->len / sizeof(uint32_t) != rows) return 0;
    /* columns that need not be looked at are not: each costs a miss of the processor's cache */
    place->first = each ? ordinal * each : ordinal ? number_at(field_ends, ordinal - 1) : 0;
    end = each ? place->first + each : number_at(field_ends, ordinal);
    if (end <= place->first || end > rows) return 0;
    place->last = end - 1;
    begin = width ? width * ordinal : ordinal ? number_at(key_ends, ordinal - 1) : 0;
    end = width ? begin + width : number_at(key_ends, ordinal);
    if (end < begin || end > (uint64_t)keys->len || end - begin > 100) return 0;
    place->key = (const char *)keys->buf + begin;
    place->key_length = (Py_ssize_t)(end - begin);
    uint64_t payload = number_at(offsets, place->first), last = number_at(offsets, place->last);
    if (payload < BLOCK || last < payload || last - payload > MOST_IN_A_SAMPLE) return 0;
    place->start = payload - BLOCK;
    place->size = last - place->start;
    if (number_at(sizes, place->last) > MOST_IN_A_SAMPLE) return 0;
    place->size += number_at(sizes, place->last);
    return place->size <= MOST_IN_A_SAMPLE && place->start <= INT64_MAX - MOST_IN_A_SAMPLE;
}

/* Read the bytes of a sample; 0 where they are not there, or the file is another than when it was opened. */
static int read_place(int file, long long length, long long changed_ns, const Place *place, char *content)
{
    ssize_t count;
    int same = 0;
    Py_BEGIN_ALLOW_THREADS
    count = pread(file, content, (size_t)place->size, (off_t)place->start);
    if (count >= 0 && (uint64_t)count == place->size) same = is_same_file(file, length, changed_ns);
    Py_END_ALLOW_THREADS
    return same;
}

/* Whether the plainest of headers stands before a payload, and proves it: checksum, kind, size, and the name, which is
   the key and what follows it. */
static int proves(const unsigned char *header, const Place *place, const char *rest, Py_ssize_t rest_length, uint64_t size)
{
    Py_ssize_t key = place->key_length;
    return key + rest_length <= 100 && memcmp(header, place->key, (size_t)key) == 0
        && memcmp(header + key, rest, (size_t)rest_length) == 0 && (header[156] == '0' || header[156] == 0)
        && header[345] == 0 && read_octal(header + 124, 12) == (long long)size && is_checksum_right(header);
}

/* Add the fields to a sample; 0 where one is unusual, -1 with MemoryError. */
static int add_fields(
    const Py_buffer *columns, const Place *place, PyObject *names, uint64_t each, const char *content, PyObject *sample)
{
    const uint32_t *kinds = (const uint32_t *)columns[5].buf;
    for (uint64_t row = place->first; row <= place->last; row++) {
        uint32_t kind = kinds[each ? row - place->first : row];
        uint64_t at = number_at(columns + 3, row) - place->start, size = number_at(columns + 4, row);
        if (at < BLOCK || at > place->size || size > place->size - at) return 0;
        if (kind >= (uint64_t)PyTuple_Size(names)) return 0;
        PyObject *pair = PyTuple_GetItem(names, (Py_ssize_t)kind);
        char *rest;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(pair, 1), &rest, &length) < 0) return -1;
        if (!proves((const unsigned char *)content + at - BLOCK, place, rest, length, size)) return 0;
        PyObject *payload = PyBytes_FromStringAndSize(content + at, (Py_ssize_t)size);
        int failed = payload == NULL || PyDict_SetItem(sample, PyTuple_GetItem(pair, 0), payload) < 0;
        Py_XDECREF(payload);
        if (failed) return -1;
    }
    return 1;
}

static PyObject *make_sample(PyObject *file, const Py_buffer *columns, uint64_t ordinal, uint64_t each, uint64_t width)
{
    Place place;
    char content[MOST_IN_A_SAMPLE];
    int descriptor = (int)PyLong_AsLong(PyTuple_GetItem(file, FILE_DESCRIPTOR));
    long long length = PyLong_AsLongLong(PyTuple_GetItem(file, FILE_LENGTH));
    long long changed_ns = PyLong_AsLongLong(PyTuple_GetItem(file, FILE_CHANGED));
    if (PyErr_Occurred()) return NULL;
    if (!find_place(columns, ordinal, each, width, &place)) Py_RETURN_NONE;
    if (!read_place(descriptor, length, changed_ns, &place, content)) Py_RETURN_NONE;
    PyObject *sample = PyDict_New(), *key = PyUnicode_DecodeUTF8(place.key, place.key_length, "surrogateescape");
    int added = -1;
    if (sample != NULL && key != NULL && PyDict_SetItemString(sample, "__key__", key) == 0
        && PyDict_SetItemString(sample, "__url__", PyTuple_GetItem(file, URL)) == 0)
        added = add_fields(columns, &place, PyTuple_GetItem(file, NAMES), each, content, sample);
    Py_XDECREF(key);
    if (added > 0) return sample;
    Py_XDECREF(sample);
    if (added < 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(read_small_sample_doc,
"read_small_sample(file, ordinal) -> dict or None\n\n"
"Read a sample of an index by its number; None where anything about it is unusual.\n\n"
"file: (descriptor, length, time of its last change in nanoseconds, columns of the index: keys, key_ends, field_ends,\n"
"offsets, sizes, kinds, names: tuple of (field, bytes of the member's name after the key, with the NUL that ends it),\n"
"fields of each sample where all have the same, or 0, bytes of each key where all are alike, or 0, sparse samples: a\n"
"frozenset, url, ...); ordinal: from 0.");

static PyObject *read_small_sample(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer columns[COLUMNS];
    PyObject *sample = NULL;
    int opened = 0;
    (void)module;
    if (count != 2 || !PyTuple_CheckExact(args[0]) || PyTuple_Size(args[0]) < DESCRIBED
        || !PyTuple_CheckExact(PyTuple_GetItem(args[0], NAMES))) {
        PyErr_SetString(PyExc_TypeError, "a description of the file, and a number");
        return NULL;
    }
    PyObject *file = args[0], *sparse = PyTuple_GetItem(file, SPARSE);
    long long ordinal = PyLong_AsLongLong(args[1]);
    if (ordinal == -1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return NULL;
        PyErr_Clear();
    }
    if (ordinal < 0) Py_RETURN_NONE;
    long long each = PyLong_AsLongLong(PyTuple_GetItem(file, FIELDS_EACH));
    long long width = PyLong_AsLongLong(PyTuple_GetItem(file, KEY_BYTES));
    if (PyErr_Occurred()) return NULL;
    if (each < 0 || width < 0 || each > UINT32_MAX || width > UINT32_MAX || ordinal > UINT32_MAX) Py_RETURN_NONE;
    if (PySet_Size(sparse) != 0) {
        int strange = PySet_Contains(sparse, args[1]);
        if (strange < 0) return NULL;
        if (strange) Py_RETURN_NONE;
    }
    for (; opened < COLUMNS; opened++)
        if (PyObject_GetBuffer(PyTuple_GetItem(file, KEYS + opened), &columns[opened], PyBUF_SIMPLE) < 0) goto done;
    sample = make_sample(file, columns, (uint64_t)ordinal, (uint64_t)each, (uint64_t)width);
done:
    while (opened > 0) PyBuffer_Release(&columns[--opened]);
    return sample;
}
#endif
