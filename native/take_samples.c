/* Takes whole plain members out of a chunk of a tar stream, and groups them into samples.

   This is an optional copy of the usual case of two Python classes, webdataset.tar.scanner.TarScanner and
   webdataset.samples.grouping.Grouper. It keeps no state of the stream, raises no error but MemoryError, and judges
   nothing: it stops before the first header that is not plain, and Python reads that one. So truncation, damage,
   limits, warnings, policies and resuming have one author, which is Python.

   A header is taken where: its checksum is right (octal, unsigned); its type is '0' or NUL, perhaps after one PAX
   header of one record that says nothing about name, size or layout; its body is whole in the chunk; and its name has
   an extension that Python has seen before, under the same rules, with a key that is new or the present one's.

   A body that the chunk cuts off is read from the file, where there is one, into the bytes that the sample gets: the
   operating system copies it there, and nothing is copied again. With it come a few blocks more, in which the next
   large body is expected to begin. Where the file gives less, header and body so far are handed back as one chunk:
   to Python it is as if the chunk had ended there.

   At the end stand two loops of a loader's workers, webdataset.loading.worker.WorkerLoop._draw and the usual case of
   webdataset.loading.columns.collate_rows. They keep no state, and the errors that they raise are those of what they
   call. */

#define PY_SSIZE_T_CLEAN
/* scripts/hatch_build.py defines it for Pythons without the global lock: they have no stable interface */
#ifndef FREE_THREADED
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#ifndef _WIN32
#include <sys/uio.h>
#endif

/* raised by one where the arguments or the result of `take` change; native_core.py compares it */
#define PROTOCOL 3
#ifndef SOURCE
#define SOURCE "" /* digest of this file, where scripts/hatch_build.py compiles it */
#endif

#define BLOCK 512
#define KNOWN 64
#define KNOWN_BYTES 48
/* bytes of a body from which on a read of its own costs less than to copy it */
#define WORTH_A_READ (16 * 1024)
/* bodies of so many bytes are Python's, which gives the samples before them first; as in scanner.py */
#define LARGE (128 * 1024)
/* bytes that are read with a body: at least, and from which on they are a chunk */
#define LEAST_AHEAD 4096
#define MOST_AHEAD (256 * 1024)

typedef struct {
    Py_ssize_t length;
    char bytes[KNOWN_BYTES];
    PyObject *field;
} Extension;

typedef struct {
    PyObject_HEAD
    PyObject *stamp;  /* dict: what each sample of the shard begins with; its first name is __key__ */
    PyObject *fields; /* dict of the grouper: extension to field, as seen in this shard */
    PyObject *common; /* the same of all groupers with these rules */
    PyObject *key_name;
    PyObject *other; /* a field that is not among the known ones */
    int busy; /* a call is at work: readers belong to one thread each, and a mistake there must not break memory */
    /* bytes to read with the next body, 0 where bodies are small; and where the last large one ended in the stream */
    Py_ssize_t ahead;
    long long body_end;
    int count;
    Extension known[KNOWN];
} Taker;

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

/* Octal text with spaces around it, ended by NUL or by the end of the field; -1 where it is anything else. */
static long long read_octal(const unsigned char *field, int length)
{
    long long value = 0;
    int at = 0, digits = 0;
    while (at < length && field[at] == ' ') at++;
    for (; at < length && field[at] >= '0' && field[at] <= '7'; at++, digits++) value = value * 8 + (field[at] - '0');
    for (; at < length && field[at] != 0; at++)
        if (field[at] != ' ') return -1;
    return digits ? value : -1;
}

static int is_checksum_right(const unsigned char *header)
{
    unsigned int sum = 0;
    for (int at = 0; at < BLOCK; at++) sum += header[at];
    /* the field itself counts as spaces */
    for (int at = 148; at < 156; at++) sum += ' ' - header[at];
    return read_octal(header + 148, 8) == (long long)sum;
}

static int has(const unsigned char *body, Py_ssize_t end, const char *word)
{
    Py_ssize_t length = (Py_ssize_t)strlen(word);
    return end >= length && memcmp(body + end - length, word, (size_t)length) == 0;
}

/* Whether the body of a PAX header is one record that says nothing about name, size or layout of the next member. */
static int is_indifferent(const unsigned char *body, Py_ssize_t size)
{
    Py_ssize_t length = 0, at = 0, equals = 0;
    for (; at < size && body[at] >= '0' && body[at] <= '9' && length <= BLOCK; at++) length = length * 10 + (body[at] - '0');
    if (at == 0 || body[0] == '0' || length != size || at >= size || body[at] != ' ' || body[size - 1] != '\n') return 0;
    for (; at < size; at++) {
        if (body[at] == '=') {
            equals = 1;
            if (has(body, at, "path") || has(body, at, "size") || has(body, at, "hdrcharset")) return 0;
        }
        else if (body[at] == '.' && has(body, at, "GNU.sparse")) return 0;
    }
    return (int)equals;
}

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

/* The field of an extension; NULL where it is not known, or with MemoryError. It is the taker's until the next call. */
static PyObject *find_field(Taker *self, const char *bytes, Py_ssize_t length)
{
    for (int each = 0; each < self->count; each++) {
        const Extension *known = &self->known[each];
        if (known->length == length && memcmp(known->bytes, bytes, (size_t)length) == 0) return known->field;
    }
    PyObject *text = PyUnicode_DecodeUTF8(bytes, length, "surrogateescape");
    if (text == NULL) return NULL;
    PyObject *before = self->other;
    self->other = look_up(self->fields, text);
    if (self->other == NULL && !PyErr_Occurred()) {
        self->other = look_up(self->common, text);
        if (self->other != NULL && PyDict_SetItem(self->fields, text, self->other) < 0) Py_CLEAR(self->other);
    }
    Py_DECREF(text);
    Py_XDECREF(before);
    if (self->other == NULL || length > KNOWN_BYTES || self->count == KNOWN) return self->other;
    Extension *known = &self->known[self->count++];
    known->length = length;
    memcpy(known->bytes, bytes, (size_t)length);
    known->field = self->other;
    self->other = NULL;
    return known->field;
}

/* Appends a sample and its offset, or neither. */
static int append_sample(PyObject *samples, PyObject *offsets, PyObject *sample, long long start)
{
    PyObject *number = PyLong_FromLongLong(start);
    if (number == NULL) return -1;
    Py_ssize_t count = PyList_Size(samples);
    int failed = PyList_Append(samples, sample);
    if (!failed && PyList_Append(offsets, number) < 0) {
        PyObject *type, *value, *traceback;
        failed = -1;
        PyErr_Fetch(&type, &value, &traceback);
        PyList_SetSlice(samples, count, count + 1, NULL);
        PyErr_Restore(type, value, traceback);
    }
    Py_DECREF(number);
    return failed;
}

static Py_ssize_t last_slash(const char *name, Py_ssize_t length)
{
    while (length > 0 && name[length - 1] != '/') length--;
    return length - 1;
}

/* Fill `first` from a file, and as much of `second` as comes with it; the number of bytes, less at the end or a fault. */
static Py_ssize_t read_file(int file, char *first, Py_ssize_t first_size, char *second, Py_ssize_t second_size)
{
    Py_ssize_t taken = 0;
#ifndef _WIN32
    Py_BEGIN_ALLOW_THREADS
    do {
        struct iovec parts[2] = {{first + taken, (size_t)(first_size - taken)}, {second, (size_t)second_size}};
        Py_ssize_t count = (Py_ssize_t)(first_size ? readv(file, parts, 2) : readv(file, parts + 1, 1));
        if (count <= 0) break;
        taken += count;
    } while (taken < first_size);
    Py_END_ALLOW_THREADS
#else
    (void)file, (void)first, (void)first_size, (void)second, (void)second_size;
#endif
    return taken;
}

/* Where the stream is read: a chunk, and the file that continues it. */
typedef struct {
    PyObject *buffer; /* owned */
    char *data;
    Py_ssize_t end;
    long long base; /* offset of the chunk in the stream */
    int file;       /* -1 where there is none */
    Py_ssize_t left; /* bytes that may still be read from it in this call */
} Source;

static int replace_chunk(Source *source, PyObject *buffer, Py_ssize_t end, long long base)
{
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(buffer, &source->data, &size) < 0) return -1;
    source->buffer = buffer;
    source->end = end;
    source->base = base;
    return 0;
}

/* Read the next chunk, of `size` bytes; 1 where there is one, 0 at the end, -1 with MemoryError. */
static int read_chunk(Source *source, Py_ssize_t size)
{
    PyObject *next = PyBytes_FromStringAndSize(NULL, size);
    if (next == NULL) return -1;
    Py_ssize_t count = read_file(source->file, NULL, 0, PyBytes_AsString(next), size);
    if (count <= 0) {
        Py_DECREF(next);
        return 0;
    }
    source->left -= count;
    Py_DECREF(source->buffer);
    return replace_chunk(source, next, count, source->base + source->end) < 0 ? -1 : 1;
}

/* Read a body that begins at `body` in the chunk, and `ahead` bytes that follow it and its padding: they are the next
   chunk. `first` is where its first header begins. The body, owned, and the chunk before, owned, in `spent`; NULL with
   MemoryError, or where the file gives less: then the chunk is what there is from `first` on. */
static PyObject *read_body(
    Source *source, Py_ssize_t first, Py_ssize_t body, Py_ssize_t size, Py_ssize_t ahead, PyObject **spent)
{
    Py_ssize_t here = source->end - body, padding = -size & (BLOCK - 1);
    PyObject *payload = PyBytes_FromStringAndSize(NULL, size);
    PyObject *next = PyBytes_FromStringAndSize(NULL, padding + ahead);
    if (payload == NULL || next == NULL) goto failed;
    char *bytes = PyBytes_AsString(payload);
    memcpy(bytes, source->data + body, (size_t)here);
    Py_ssize_t count = read_file(source->file, bytes + here, size - here, PyBytes_AsString(next), padding + ahead);
    source->left -= count;
    if (here + count >= size) {
        *spent = source->buffer;
        if (replace_chunk(source, next, here + count - size, source->base + body + size) == 0) return payload;
        *spent = NULL;
        goto failed;
    }
    PyObject *cut = PyBytes_FromStringAndSize(NULL, body - first + here + count);
    if (cut == NULL) goto failed;
    memcpy(PyBytes_AsString(cut), source->data + first, (size_t)(body - first));
    memcpy(PyBytes_AsString(cut) + (body - first), bytes, (size_t)(here + count));
    Py_DECREF(payload);
    Py_DECREF(next);
    Py_DECREF(source->buffer);
    replace_chunk(source, cut, body - first + here + count, source->base + first);
    return NULL;
failed:
    Py_XDECREF(payload);
    Py_XDECREF(next);
    return NULL;
}

/* Choose how many bytes to read with the next body: as many as lay between the last two large ones, or ever more. */
static void plan_ahead(Taker *self, long long header, Py_ssize_t size, long long end)
{
    if (size >= WORTH_A_READ) {
        long long between = header - self->body_end + BLOCK;
        self->ahead = between > MOST_AHEAD ? self->ahead : (Py_ssize_t)((between + LEAST_AHEAD - 1) & -LEAST_AHEAD);
        if (self->ahead < LEAST_AHEAD) self->ahead = LEAST_AHEAD;
        self->body_end = end;
    }
    else self->ahead *= 2;
    /* small ones come: Python reads chunks */
    if (self->ahead >= MOST_AHEAD) self->ahead = 0;
}

PyDoc_STRVAR(take_doc,
"take(buf, pos, base, sample, key, start, samples, offsets, file, most)\n"
"-> (buf, pos, base, sample, key, start, more)\n\n"
"Take members from a chunk, and from the file after it.\n\n"
"buf: bytes; pos: where a header begins; base: offset of the chunk in the stream; sample: the one in progress, or None;\n"
"key: its key; start: where it starts; samples, offsets: lists that get the samples that are complete, and where each\n"
"starts; file: descriptor of the file that continues the chunk, or -1; most: bytes from which on no more are read from it.\n"
"The new chunk is the last that was read. The new position may lie up to 511 bytes after the chunk: padding that is to\n"
"be skipped. more: only `most` ended it; it continues from there.");

static PyObject *take(Taker *self, PyObject *args)
{
    PyObject *buffer, *sample, *key, *samples, *offsets, *key_bytes = NULL, *spent = NULL, *payload = NULL;
    Source source;
    Py_ssize_t pos;
    long long start;
    Py_ssize_t key_length = 0;
    int more = 0;
    char present[2 * BLOCK]; /* the bytes of the present key */

    if (!PyArg_ParseTuple(args, "OnLOOLOOin", &buffer, &pos, &source.base, &sample, &key, &start, &samples, &offsets,
                          &source.file, &source.left))
        return NULL;
    if (PyBytes_AsStringAndSize(buffer, &source.data, &source.end) < 0) return NULL;
    if (pos < 0) {
        PyErr_SetString(PyExc_ValueError, "a position is not negative");
        return NULL;
    }
#ifdef _WIN32
    source.file = -1;
#endif
    Py_INCREF(buffer);
    source.buffer = buffer;
    Py_INCREF(sample);
    Py_INCREF(key);
    if (sample != Py_None) {
        key_bytes = PyUnicode_AsEncodedString(key, "utf-8", "surrogateescape");
        if (key_bytes == NULL) goto failed;
        key_length = PyBytes_Size(key_bytes);
        /* a key of a long name (PAX, GNU): what continues it is no plain header of ours but for its first bytes */
        if (key_length > (Py_ssize_t)sizeof present) goto stop;
        memcpy(present, PyBytes_AsString(key_bytes), (size_t)key_length);
    }
    for (;;) {
        Py_ssize_t at = pos, end = source.end;
        if (at >= end && source.file >= 0 && self->ahead) {
            /* a chunk that ended between two members, among large ones */
            if (source.left <= 0) {
                more = 1;
                break;
            }
            int came = read_chunk(&source, at - end + self->ahead);
            if (came < 0) goto failed;
            if (came == 0) break;
            pos = at - end;
            plan_ahead(self, 0, 0, 0);
            continue;
        }
        if (at > end || end - at < BLOCK) break;
        const unsigned char *header = (const unsigned char *)source.data + at;
        if (header[156] == 'x') {
            if (end - at < 3 * BLOCK || !is_checksum_right(header)) break;
            long long records = read_octal(header + 124, 12);
            if (records <= 0 || records > BLOCK || !is_indifferent(header + BLOCK, (Py_ssize_t)records)) break;
            at += 2 * BLOCK;
            header += 2 * BLOCK;
        }
        if ((header[156] != '0' && header[156] != 0) || !is_checksum_right(header)) break;
        long long size = read_octal(header + 124, 12);
        Py_ssize_t body = at + BLOCK;
        if (size < 0) break;
        int cut = size > (long long)(end - body);
        if (cut) {
            if (source.file < 0 || size >= LARGE) break;
            if (!self->ahead && size - (end - body) < WORTH_A_READ) break;
            if (source.left <= 0) {
                more = 1;
                break;
            }
        }

        char joined[300];
        const char *name = (const char *)header;
        const char *stop = memchr(name, 0, 100);
        Py_ssize_t length = stop ? stop - name : 100;
        if (header[156] == 0 && length > 0 && name[length - 1] == '/') break; /* a folder of an early writer */
        if (header[345] != 0 && memcmp(header + 257, "ustar", 6) == 0) {
            const char *folder = (const char *)header + 345;
            stop = memchr(folder, 0, 155);
            Py_ssize_t before = stop ? stop - folder : 155;
            memcpy(joined, folder, (size_t)before);
            joined[before] = '/';
            memcpy(joined + before + 1, name, (size_t)length);
            name = joined;
            length += before + 1;
        }

        int continues = sample != Py_None && length > key_length && name[key_length] == '.'
            && memcmp(name, present, (size_t)key_length) == 0;
        Py_ssize_t dot = key_length;
        if (!continues) {
            Py_ssize_t slash = last_slash(name, length);
            const char *found = memchr(name + slash + 1, '.', (size_t)(length - slash - 1));
            if (found == NULL) break;
            dot = found - name;
            if (dot <= slash + 1 || name[0] == '_') break;
        }
        PyObject *field = find_field(self, name + dot + 1, length - dot - 1);
        if (field == NULL) {
            if (PyErr_Occurred()) goto failed;
            break;
        }
        if (continues) {
            int repeated = PyDict_Contains(sample, field);
            if (repeated < 0) goto failed;
            if (repeated) break;
        }
        long long first = source.base + pos; /* of the PAX header, where there is one */
        long long stops = source.base + body + size;
        if (cut) {
            payload = read_body(&source, pos, body, (Py_ssize_t)size, self->ahead ? self->ahead : LEAST_AHEAD, &spent);
            if (payload == NULL) {
                if (PyErr_Occurred()) goto failed;
                pos = 0;
                break;
            }
            pos = (Py_ssize_t)(-size & (BLOCK - 1));
        }
        else {
            payload = PyBytes_FromStringAndSize(source.data + body, (Py_ssize_t)size);
            if (payload == NULL) goto failed;
            pos = body + (Py_ssize_t)((size + BLOCK - 1) & ~(long long)(BLOCK - 1));
        }
        if (cut || (self->ahead && size >= WORTH_A_READ)) plan_ahead(self, first, (Py_ssize_t)size, stops);
        if (!continues) {
            if (sample != Py_None && append_sample(samples, offsets, sample, start) < 0) goto failed;
            PyObject *made = PyDict_Copy(self->stamp);
            if (made == NULL) goto failed;
            Py_DECREF(sample);
            sample = made;
            PyObject *text = PyUnicode_DecodeUTF8(name, dot, "surrogateescape");
            if (text == NULL) goto failed;
            Py_DECREF(key);
            key = text;
            if (PyDict_SetItem(sample, self->key_name, key) < 0) goto failed;
            memcpy(present, name, (size_t)dot);
            key_length = dot;
            start = first;
        }
        int failed = PyDict_SetItem(sample, field, payload);
        Py_CLEAR(payload);
        /* the name stood in it */
        Py_CLEAR(spent);
        if (failed < 0) goto failed;
    }
    if (source.end < PyBytes_Size(source.buffer)) {
        PyObject *shorter = PyBytes_FromStringAndSize(source.data, source.end);
        if (shorter == NULL) goto failed;
        Py_DECREF(source.buffer);
        source.buffer = shorter;
    }
stop:
    Py_XDECREF(key_bytes);
    return Py_BuildValue("NnLNNLi", source.buffer, pos, source.base, sample, key, start, more);
failed:
    Py_XDECREF(payload);
    Py_XDECREF(spent);
    Py_XDECREF(key_bytes);
    Py_DECREF(source.buffer);
    Py_DECREF(sample);
    Py_DECREF(key);
    return NULL;
}

static PyObject *Taker_take(Taker *self, PyObject *args)
{
    if (SWAP(&self->busy, 1)) {
        PyErr_SetString(PyExc_RuntimeError, "a reader of samples is used by two threads at once");
        return NULL;
    }
    PyObject *taken = take(self, args);
    SWAP(&self->busy, 0);
    return taken;
}

static PyObject *Taker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *stamp, *fields, *common;
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Taker() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyDict_Type, &stamp, &PyDict_Type, &fields, &PyDict_Type, &common)) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Taker *self = (Taker *)allocate(type, 0);
    if (self == NULL) return NULL;
    self->key_name = PyUnicode_InternFromString("__key__");
    /* it is the caller's to change: the template is not */
    self->stamp = PyDict_Copy(stamp);
    Py_INCREF(fields);
    self->fields = fields;
    Py_INCREF(common);
    self->common = common;
    if (self->key_name == NULL || self->stamp == NULL) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static int Taker_traverse(Taker *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->stamp);
    Py_VISIT(self->fields);
    Py_VISIT(self->common);
    return 0;
}

static int Taker_clear(Taker *self)
{
    Py_CLEAR(self->stamp);
    Py_CLEAR(self->fields);
    Py_CLEAR(self->common);
    Py_CLEAR(self->key_name);
    Py_CLEAR(self->other);
    while (self->count > 0) {
        self->count--;
        /* the macro may name its argument twice */
        Py_CLEAR(self->known[self->count].field);
    }
    return 0;
}

static void Taker_dealloc(Taker *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack((PyObject *)self);
    Taker_clear(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef Taker_methods[] = {
    {"take", (PyCFunction)Taker_take, METH_VARARGS, take_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot Taker_slots[] = {
    {Py_tp_doc, (void *)"Taker(stamp, fields, common): takes the samples of one shard; holds caches only."},
    {Py_tp_new, (void *)Taker_new},
    {Py_tp_dealloc, (void *)Taker_dealloc},
    {Py_tp_traverse, (void *)Taker_traverse},
    {Py_tp_clear, (void *)Taker_clear},
    {Py_tp_methods, Taker_methods},
    {0, NULL},
};

static PyType_Spec Taker_spec = {
    .name = "webdataset._native.Taker",
    .basicsize = sizeof(Taker),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = Taker_slots,
};

static int start_module(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &Taker_spec, NULL);
    if (type == NULL) return -1;
    int failed = PyModule_AddObjectRef(module, "Taker", type);
    Py_DECREF(type);
    if (failed < 0) return -1;
    if (PyModule_AddStringConstant(module, "SOURCE", SOURCE) < 0) return -1;
    return PyModule_AddIntConstant(module, "PROTOCOL", PROTOCOL);
}

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
    if (count == 0 || width == 0 || width > MOST_COLUMNS) Py_RETURN_NONE;
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

static PyMethodDef module_methods[] = {
    {"draw", (PyCFunction)draw, METH_VARARGS, draw_doc},
    {"gather", (PyCFunction)gather, METH_VARARGS, gather_doc},
    {NULL, NULL, 0, NULL},
};

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
    .m_doc = "The usual case of reading samples, and of a loader's workers, in C; webdataset.samples.native_core decides "
             "whether it is used.",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module_definition);
}
