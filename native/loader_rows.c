/* Loops of a loader's workers: webdataset.loading.worker.WorkerLoop._draw, the usual case of
   webdataset.loading.columns.collate_rows, and how webdataset.loading.ipc sends lists of bytes and texts. They keep no
   state, and the errors that they raise are those of what they call. */

#include "core.h"

/* -- columns of samples */

#define MOST_COLUMNS 64

PyDoc_STRVAR(gather_doc,
"gather(samples, keys) -> [(values, kind, size), ...] or None\n\n"
"Take samples apart, field by field.\n\n"
"samples: a list; keys: of dicts, or None for tuples. values: a list, by sample; kind: bytes or str where all values are\n"
"of exactly this type, and size the sum of their lengths; else None and 0. None where a sample is no dict (no tuple), or\n"
"has other fields, or there are none.");

static PyObject *gather(PyObject *module, PyObject *args)
{
    PyObject *samples, *keys, *columns[MOST_COLUMNS], *found = NULL;
    PyTypeObject *kinds[MOST_COLUMNS];
    Py_ssize_t sizes[MOST_COLUMNS], count, width = 0, made = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &samples, &keys)) return NULL;
    count = PyList_Size(samples);
    if (keys == Py_None) {
        PyObject *first = count ? PyList_GetItem(samples, 0) : NULL;
        if (first != NULL && PyTuple_CheckExact(first)) width = PyTuple_Size(first);
    }
    else if (PyTuple_CheckExact(keys)) width = PyTuple_Size(keys);
    if (count == 0 || width == 0 || width > MOST_COLUMNS) RETURN_NONE;
    for (; made < width; made++) {
        columns[made] = PyList_New(count);
        if (columns[made] == NULL) goto done;
        kinds[made] = NULL;
        sizes[made] = 0;
    }
    for (Py_ssize_t row = 0; row < count; row++) {
        /* a key that runs code of others could change the list */
        if (row >= PyList_Size(samples)) goto unlike;
        PyObject *sample = PyList_GetItem(samples, row);
        if (keys == Py_None ? !PyTuple_CheckExact(sample) || PyTuple_Size(sample) != width
                            : !PyDict_CheckExact(sample) || PyDict_Size(sample) != width)
            goto unlike;
        Py_INCREF(sample);
        for (Py_ssize_t at = 0; at < width; at++) {
            PyObject *value;
            if (keys == Py_None) {
                value = PyTuple_GetItem(sample, at);
                Py_INCREF(value);
            }
            else value = look_up(sample, PyTuple_GetItem(keys, at));
            if (value == NULL) {
                Py_DECREF(sample);
                if (PyErr_Occurred()) goto done;
                goto unlike;
            }
            PyTypeObject *kind = Py_TYPE(value);
            if (row == 0) kinds[at] = kind == &PyBytes_Type || kind == &PyUnicode_Type ? kind : NULL;
            else if (kinds[at] != kind) kinds[at] = NULL;
            if (kinds[at] != NULL) sizes[at] += kind == &PyBytes_Type ? PyBytes_Size(value) : PyUnicode_GetLength(value);
            /* the list is new: nothing is replaced */
            PyList_SetItem(columns[at], row, value);
        }
        Py_DECREF(sample);
    }
    found = PyList_New(width);
    for (Py_ssize_t at = 0; found != NULL && at < width; at++) {
        PyObject *kind = kinds[at] == NULL ? Py_None : (PyObject *)kinds[at];
        PyObject *column = Py_BuildValue("OOn", columns[at], kind, kinds[at] == NULL ? (Py_ssize_t)0 : sizes[at]);
        if (column == NULL) Py_CLEAR(found);
        else PyList_SetItem(found, at, column);
    }
    goto done;
unlike:
    found = Py_None;
    Py_INCREF(found);
done:
    while (made > 0) Py_DECREF(columns[--made]);
    return found;
}

/* -- lists of small bytes and texts, as one message */

#define REPEATED UINT32_MAX

/* The bytes of a value, borrowed: of a text, as UTF-8. NULL where it has none. */
static const char *view_value(PyObject *value, PyTypeObject *kind, Py_ssize_t *length)
{
    if (Py_TYPE(value) != kind) return NULL;
    if (kind == &PyUnicode_Type) {
        const char *text = PyUnicode_AsUTF8AndSize(value, length);
        /* one with a surrogate is pickled, as is one that there is no memory for */
        if (text == NULL) PyErr_Clear();
        return text;
    }
    *length = PyBytes_Size(value);
    return PyBytes_AsString(value);
}

PyDoc_STRVAR(pack_values_doc,
"pack_values(values) -> bytes or None\n\n"
"Bytes that unpack_values makes a list of again; None where the values are not all bytes, or all texts.\n\n"
"The sizes come first, four bytes each, then all content. A value that is the one before it has no content.");

static PyObject *pack_values(PyObject *module, PyObject *values)
{
    (void)module;
    if (!PyList_CheckExact(values)) RETURN_NONE;
    Py_ssize_t count = PyList_Size(values), total, length = 0;
    PyTypeObject *kind = count ? Py_TYPE(PyList_GetItem(values, 0)) : NULL;
    if (kind != &PyBytes_Type && kind != &PyUnicode_Type) RETURN_NONE;
    if (count > INT32_MAX / 4) RETURN_NONE;
    total = 4 * count;
    PyObject *before = NULL;
    for (Py_ssize_t row = 0; row < count; row++) {
        PyObject *value = PyList_GetItem(values, row);
        if (value != before && (view_value(value, kind, &length) == NULL || length >= INT32_MAX)) RETURN_NONE;
        if (value != before) total += length;
        before = value;
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, total);
    if (packed == NULL) return NULL;
    char *sizes = PyBytes_AsString(packed), *content = sizes + 4 * count;
    before = NULL;
    for (Py_ssize_t row = 0; row < count; row++) {
        PyObject *value = PyList_GetItem(values, row);
        uint32_t size = REPEATED;
        if (value != before) {
            const char *bytes = view_value(value, kind, &length);
            memcpy(content, bytes, (size_t)length);
            content += length;
            size = (uint32_t)length;
        }
        memcpy(sizes + 4 * row, &size, sizeof size);
        before = value;
    }
    return packed;
}

PyDoc_STRVAR(unpack_values_doc,
"unpack_values(packed, count, text, rows, start, step)\n\n"
"Put so many values that pack_values was given into a list, from rows[start] on in steps; text: they are texts.\n"
"ValueError: it gave no such bytes; IndexError: the list has no such row.");

static PyObject *unpack_values(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    if (given != 6 || !PyBytes_CheckExact(args[0]) || !PyList_CheckExact(args[3])) {
        PyErr_SetString(PyExc_TypeError, "unpack_values(packed, count, text, rows, start, step)");
        return NULL;
    }
    Py_ssize_t count = PyLong_AsSsize_t(args[1]), start = PyLong_AsSsize_t(args[4]), step = PyLong_AsSsize_t(args[5]);
    int text = PyObject_IsTrue(args[2]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t length = PyBytes_Size(args[0]), at = 4 * count, end = PyList_Size(args[3]);
    if (count < 0 || count > length / 4) goto unknown;
    if (count > 0 && (start < 0 || start >= end || step < 1 || (count - 1) > (end - 1 - start) / step)) {
        PyErr_SetString(PyExc_IndexError, "there are no rows for these values");
        return NULL;
    }
    const char *packed = PyBytes_AsString(args[0]);
    PyObject *value = NULL;
    for (Py_ssize_t row = 0; row < count; row++) {
        uint32_t size;
        memcpy(&size, packed + 4 * row, sizeof size);
        if (size == REPEATED && value != NULL) Py_INCREF(value);
        else if (size > (size_t)(length - at)) goto unknown;
        else {
            value = text ? PyUnicode_DecodeUTF8(packed + at, (Py_ssize_t)size, NULL)
                         : PyBytes_FromStringAndSize(packed + at, (Py_ssize_t)size);
            if (value == NULL) return NULL;
            at += (Py_ssize_t)size;
        }
        /* it stays in the list, which is not changed meanwhile */
        if (PyList_SetItem(args[3], start + row * step, value) < 0) return NULL;
    }
    if (at == length) RETURN_NONE;
unknown:
    PyErr_SetString(PyExc_ValueError, "these are no values that were packed");
    return NULL;
}

PyDoc_STRVAR(find_address_doc,
"find_address(buffer) -> int\n\n"
"Where the bytes of a buffer begin in memory.");

static PyObject *find_address(PyObject *module, PyObject *object)
{
    Py_buffer view;
    (void)module;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *address = PyLong_FromVoidPtr(view.buf);
    PyBuffer_Release(&view);
    return address;
}

/* -- drawing samples */

/* where a page of progress has what it says; webdataset.loading.shared_memory writes and reads it */
#define NOTED_KEY 12
#define NOTED_KEY_BYTES 200

/* A page of progress: its memory, the url that stands there, and until when notes may be written without a look. */
typedef struct {
    PyObject *page; /* NULL where there is none */
    Py_buffer memory;
    PyObject *url; /* owned */
    double due;
    PyObject *key_name, *url_name; /* owned */
} Notes;

static int load_notes(Notes *notes)
{
    PyObject *due = PyObject_GetAttrString(notes->page, "look_again");
    if (due == NULL) return -1;
    notes->due = PyFloat_AsDouble(due);
    Py_DECREF(due);
    if (notes->due == -1.0 && PyErr_Occurred()) return -1;
    Py_XDECREF(notes->url);
    notes->url = PyObject_GetAttrString(notes->page, "url");
    return notes->url == NULL ? -1 : 0;
}

static int open_notes(Notes *notes, PyObject *page)
{
    PyObject *memory;
    if (page == Py_None) return 0;
    memory = PyObject_GetAttrString(page, "memory");
    if (memory == NULL) return -1;
    int failed = PyObject_GetBuffer(memory, &notes->memory, PyBUF_WRITABLE);
    Py_DECREF(memory);
    if (failed) return -1;
    notes->page = page;
    if (notes->memory.len < NOTED_KEY + NOTED_KEY_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a page of progress is larger");
        return -1;
    }
    notes->key_name = PyUnicode_InternFromString("__key__");
    notes->url_name = PyUnicode_InternFromString("__url__");
    return notes->key_name == NULL || notes->url_name == NULL ? -1 : load_notes(notes);
}

static void close_notes(Notes *notes)
{
    if (notes->page != NULL) PyBuffer_Release(&notes->memory);
    Py_XDECREF(notes->url);
    Py_XDECREF(notes->key_name);
    Py_XDECREF(notes->url_name);
}

/* Notes a usual sample of the shard whose url stands on the page; 0 where Python is to do it, -1 with an error. */
static int note_sample(Notes *notes, long long index, PyObject *sample)
{
#ifdef __linux__
    struct timespec now;
    if (notes->page == NULL || !PyDict_CheckExact(sample)) return 0;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0 || (double)now.tv_sec + (double)now.tv_nsec * 1e-9 > notes->due) return 0;
    PyObject *url = look_up(sample, notes->url_name);
    Py_XDECREF(url);
    if (url == NULL || url != notes->url) return PyErr_Occurred() ? -1 : 0;
    PyObject *key = look_up(sample, notes->key_name);
    Py_ssize_t length = 0;
    const char *bytes = key != NULL && PyUnicode_CheckExact(key) ? PyUnicode_AsUTF8AndSize(key, &length) : NULL;
    int noted = bytes != NULL && length <= NOTED_KEY_BYTES;
    if (noted) {
        char *page = (char *)notes->memory.buf;
        long long number = index + 1;
        unsigned short count = (unsigned short)length;
        memcpy(page, &number, sizeof number);
        memcpy(page + sizeof number, &count, sizeof count);
        memcpy(page + NOTED_KEY, bytes, (size_t)length);
    }
    Py_XDECREF(key);
    /* a key that is no Unicode is Python's; so is an error that a lookup raised */
    if (!noted && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) PyErr_Clear();
    return noted ? 1 : PyErr_Occurred() ? -1 : 0;
#else
    (void)notes, (void)index, (void)sample;
    return 0;
#endif
}

PyDoc_STRVAR(draw_doc,
"draw(samples, place, stop, end, counts, indices, beside, count, watch, page) -> bool\n\n"
"Draw samples up to an index; False where there are no more.\n\n"
"samples: an iterator of (sample, lowest index that can follow); place: [index of the next sample, ends of streams], which\n"
"is kept; stop: the index; end: stands for the end of a stream; counts: two dicts; where one is not empty once a sample\n"
"was made, count(index) is called; indices, beside: lists that get indices and samples; watch(index, sample): called with\n"
"each sample before, or None; page: of progress, or None: where it is written here, watch is not called.");

static PyObject *draw(PyObject *module, PyObject *args)
{
    PyObject *samples, *place, *end, *skips, *drops, *indices, *beside, *count, *watch, *page, *item = NULL, *number = NULL;
    long long stop, following, ends;
    int full = 0, failed = 1;
    Notes notes = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!LO(O!O!)O!O!OOO", &samples, &PyList_Type, &place, &stop, &end, &PyDict_Type, &skips,
                          &PyDict_Type, &drops, &PyList_Type, &indices, &PyList_Type, &beside, &count, &watch, &page))
        return NULL;
    if (!PyIter_Check(samples) || PyList_Size(place) != 2) {
        PyErr_SetString(PyExc_TypeError, "an iterator, and a list of two numbers");
        return NULL;
    }
    following = PyLong_AsLongLong(PyList_GetItem(place, 0));
    ends = PyLong_AsLongLong(PyList_GetItem(place, 1));
    if (PyErr_Occurred()) return NULL;
    if (open_notes(&notes, page) < 0) goto done;
    while (!full) {
        item = PyIter_Next(samples);
        if (item == NULL && PyErr_Occurred()) goto done;
        if (PyDict_Size(skips) || PyDict_Size(drops)) {
            PyObject *counted = PyObject_CallFunction(count, "L", following);
            if (counted == NULL) goto done;
            Py_DECREF(counted);
        }
        if (item == NULL) break;
        if (!PyTuple_CheckExact(item) || PyTuple_Size(item) != 2) {
            PyErr_SetString(PyExc_TypeError, "a share gives pairs");
            goto done;
        }
        PyObject *sample = PyTuple_GetItem(item, 0);
        if (sample == end) ends++;
        else {
            number = PyLong_FromLongLong(following);
            if (number == NULL) goto done;
            int noted = note_sample(&notes, following, sample);
            if (noted < 0) goto done;
            if (!noted && watch != Py_None) {
                PyObject *seen = PyObject_CallFunctionObjArgs(watch, number, sample, NULL);
                if (seen == NULL) goto done;
                Py_DECREF(seen);
                if (notes.page != NULL && load_notes(&notes) < 0) goto done;
            }
            if (PyList_Append(indices, number) < 0 || PyList_Append(beside, sample) < 0) goto done;
            Py_CLEAR(number);
        }
        long long after = PyLong_AsLongLong(PyTuple_GetItem(item, 1));
        if (after == -1 && PyErr_Occurred()) goto done;
        following = after;
        full = following >= stop;
        Py_CLEAR(item);
    }
    failed = 0;
done:
    Py_XDECREF(item);
    Py_XDECREF(number);
    PyObject *type, *value, *traceback, *at, *over;
    PyErr_Fetch(&type, &value, &traceback);
    close_notes(&notes);
    at = PyLong_FromLongLong(following);
    over = PyLong_FromLongLong(ends);
    if (at == NULL || over == NULL) {
        Py_XDECREF(at);
        Py_XDECREF(over);
        failed = 1;
    }
    else if (PyList_SetItem(place, 0, at) < 0 || PyList_SetItem(place, 1, over) < 0) failed = 1;
    if (type != NULL) {
        PyErr_Clear();
        PyErr_Restore(type, value, traceback);
    }
    return failed ? NULL : PyBool_FromLong(full);
}
