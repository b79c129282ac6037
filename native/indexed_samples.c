/* Reads a sample of plain members of a local file by its number: webdataset.index.local_samples says what is right.
   It keeps no state, and raises no error but MemoryError, and TypeError for a number that is none: anything unusual is
   None, and the caller reads the sample in the way that judges. */

#include "core.h"

#ifndef _WIN32
/* as in local_samples.py: a sample of so many bytes is read into one buffer and copied; a larger one of so many fields,
   with so many bytes between them, straight into its fields */
#define SMALL (32 * 1024)
#define MOST_FIELDS 32
#define MOST_BETWEEN (32 * 1024)

/* What stands where in the tuple that describes an open file. */
enum {
    FILE_DESCRIPTOR, FILE_LENGTH, FILE_CHANGED, KEYS, KEY_ENDS, FIELD_ENDS, OFFSETS, SIZES, KINDS, NAMES, FIELDS_EACH,
    KEY_BYTES, SPARSE, URL, DESCRIBED
};
#define COLUMNS (KINDS - KEYS + 1)

typedef struct {
    int descriptor;
    long long length, changed_ns; /* when it was opened */
} File;

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

/* Find a sample; 0 where the columns do not have it, or it does not lie in a file of this length. */
static int find_place(
    const Py_buffer *columns, uint64_t ordinal, uint64_t each, uint64_t width, uint64_t length, Place *place)
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
    uint64_t last_size = number_at(sizes, place->last);
    if (payload < BLOCK || last < payload || last > length || last_size > length - last) return 0;
    place->start = payload - BLOCK;
    place->size = last + last_size - place->start;
    return 1;
}

/* Read the bytes of a sample; 0 where they are not there, or the file is another than when it was opened. */
static int read_place(const File *file, const Place *place, char *content)
{
    ssize_t count;
    int same = 0;
    Py_BEGIN_ALLOW_THREADS
    count = pread(file->descriptor, content, (size_t)place->size, (off_t)place->start);
    if (count >= 0 && (uint64_t)count == place->size)
        same = is_same_file(file->descriptor, file->length, file->changed_ns);
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

/* Find the name of the field of a row, borrowed, which its header proves; 0 where it does not, -1 with an error. */
static int find_name(
    const Py_buffer *columns, const Place *place, PyObject *names, uint64_t each, uint64_t row, const char *header,
    PyObject **name)
{
    uint32_t kind = ((const uint32_t *)columns[5].buf)[each ? row - place->first : row];
    if (kind >= (uint64_t)PyTuple_Size(names)) return 0;
    PyObject *pair = PyTuple_GetItem(names, (Py_ssize_t)kind);
    char *rest;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(pair, 1), &rest, &length) < 0) return -1;
    *name = PyTuple_GetItem(pair, 0);
    return proves((const unsigned char *)header, place, rest, length, number_at(columns + 4, row));
}

/* Read the fields of a small sample at once, and copy them; 0 where anything is unusual, -1 with an error. */
static int add_copies(
    const File *file, const Py_buffer *columns, const Place *place, PyObject *names, uint64_t each, PyObject *sample)
{
    char content[SMALL];
    if (!read_place(file, place, content)) return 0;
    for (uint64_t row = place->first; row <= place->last; row++) {
        uint64_t at = number_at(columns + 3, row) - place->start, size = number_at(columns + 4, row);
        PyObject *name;
        if (at < BLOCK || at > place->size || size > place->size - at) return 0;
        int proved = find_name(columns, place, names, each, row, content + at - BLOCK, &name);
        if (proved <= 0) return proved;
        PyObject *payload = PyBytes_FromStringAndSize(content + at, (Py_ssize_t)size);
        int failed = payload == NULL || PyDict_SetItem(sample, name, payload) < 0;
        Py_XDECREF(payload);
        if (failed) return -1;
    }
    return 1;
}

/* Read parts of a file that follow each other; the bytes that were read, or -1. */
static ssize_t read_parts(int descriptor, const struct iovec *parts, int count, off_t offset)
{
#ifdef __linux__
    return preadv(descriptor, parts, count, offset);
#else
    ssize_t total = 0;
    for (int part = 0; part < count; part++) {
        ssize_t read = pread(descriptor, parts[part].iov_base, parts[part].iov_len, offset + total);
        if (read < 0) return -1;
        total += read;
        if ((size_t)read != parts[part].iov_len) break;
    }
    return total;
#endif
}

/* Read the fields of a large sample straight into their bytes; 0 where anything is unusual, -1 with an error. */
static int add_large(
    const File *file, const Py_buffer *columns, const Place *place, PyObject *names, uint64_t each, PyObject *sample)
{
    char between[MOST_BETWEEN];
    struct iovec parts[2 * MOST_FIELDS];
    PyObject *payloads[MOST_FIELDS];
    uint64_t length = (uint64_t)file->length, end = place->start, used = 0;
    int count = 0, added = 0;
    if (place->last - place->first >= MOST_FIELDS) return 0;
    for (uint64_t row = place->first; row <= place->last; row++, count++) {
        uint64_t at = number_at(columns + 3, row), size = number_at(columns + 4, row);
        if (at < end + BLOCK || at > length || size > length - at || size > PY_SSIZE_T_MAX / 2) goto done;
        if (at - end > MOST_BETWEEN - used) goto done;
        payloads[count] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
        if (payloads[count] == NULL) {
            added = -1;
            goto done;
        }
        parts[2 * count] = (struct iovec){between + used, (size_t)(at - end)};
        parts[2 * count + 1] = (struct iovec){PyBytes_AsString(payloads[count]), (size_t)size};
        used += at - end;
        end = at + size;
    }
    ssize_t read;
    int same = 0;
    Py_BEGIN_ALLOW_THREADS
    read = read_parts(file->descriptor, parts, 2 * count, (off_t)place->start);
    if (read >= 0 && (uint64_t)read == place->size) same = is_same_file(file->descriptor, file->length, file->changed_ns);
    Py_END_ALLOW_THREADS
    if (!same) goto done;
    for (int field = 0; field < count; field++) {
        const struct iovec *before = &parts[2 * field];
        PyObject *name;
        added = find_name(columns, place, names, each, place->first + (uint64_t)field,
                          (const char *)before->iov_base + before->iov_len - BLOCK, &name);
        if (added > 0 && PyDict_SetItem(sample, name, payloads[field]) < 0) added = -1;
        if (added <= 0) break;
    }
done:
    while (count > 0) Py_DECREF(payloads[--count]);
    return added;
}

static PyObject *make_sample(PyObject *file, const Py_buffer *columns, uint64_t ordinal, uint64_t each, uint64_t width)
{
    Place place;
    File opened = {
        (int)PyLong_AsLong(PyTuple_GetItem(file, FILE_DESCRIPTOR)),
        PyLong_AsLongLong(PyTuple_GetItem(file, FILE_LENGTH)),
        PyLong_AsLongLong(PyTuple_GetItem(file, FILE_CHANGED)),
    };
    if (PyErr_Occurred()) return NULL;
    if (opened.length < 0 || !find_place(columns, ordinal, each, width, (uint64_t)opened.length, &place)) RETURN_NONE;
    PyObject *sample = PyDict_New(), *key = PyUnicode_DecodeUTF8(place.key, place.key_length, "surrogateescape");
    int added = -1;
    if (sample != NULL && key != NULL && PyDict_SetItemString(sample, "__key__", key) == 0
        && PyDict_SetItemString(sample, "__url__", PyTuple_GetItem(file, URL)) == 0)
        added = (place.size <= SMALL ? add_copies : add_large)(
            &opened, columns, &place, PyTuple_GetItem(file, NAMES), each, sample);
    Py_XDECREF(key);
    if (added > 0) return sample;
    Py_XDECREF(sample);
    if (added < 0) return NULL;
    RETURN_NONE;
}

PyDoc_STRVAR(read_local_sample_doc,
"read_local_sample(file, ordinal) -> dict or None\n\n"
"Read a sample of an index by its number; None where anything about it is unusual.\n\n"
"file: (descriptor, length, time of its last change in nanoseconds, columns of the index: keys, key_ends, field_ends,\n"
"offsets, sizes, kinds, names: tuple of (field, bytes of the member's name after the key, with the NUL that ends it),\n"
"fields of each sample where all have the same, or 0, bytes of each key where all are alike, or 0, sparse samples: a\n"
"frozenset, url, ...); ordinal: from 0.");

static PyObject *read_local_sample(PyObject *module, PyObject *const *args, Py_ssize_t count)
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
    if (ordinal < 0) RETURN_NONE;
    long long each = PyLong_AsLongLong(PyTuple_GetItem(file, FIELDS_EACH));
    long long width = PyLong_AsLongLong(PyTuple_GetItem(file, KEY_BYTES));
    if (PyErr_Occurred()) return NULL;
    if (each < 0 || width < 0 || each > UINT32_MAX || width > UINT32_MAX || ordinal > UINT32_MAX) RETURN_NONE;
    if (PySet_Size(sparse) != 0) {
        int strange = PySet_Contains(sparse, args[1]);
        if (strange < 0) return NULL;
        if (strange) RETURN_NONE;
    }
    for (; opened < COLUMNS; opened++)
        if (PyObject_GetBuffer(PyTuple_GetItem(file, KEYS + opened), &columns[opened], PyBUF_SIMPLE) < 0) goto done;
    sample = make_sample(file, columns, (uint64_t)ordinal, (uint64_t)each, (uint64_t)width);
done:
    while (opened > 0) PyBuffer_Release(&columns[--opened]);
    return sample;
}
#endif
