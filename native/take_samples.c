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

   Two functions besides make states cheap: they sum the states of streams, and write the addresses that a shuffle has
   taken in. They too leave to Python what is not usual. */

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

/* Sums streams' states as webdataset.flow.elastic_state.sum_stream does: the CRC-32 of what marshal makes of them in its
   oldest form. Known are None, booleans, whole numbers of 64 bits, text, lists and dictionaries; for anything else it
   returns None, and Python sums. */

static uint32_t crc_tables[8][256];

static void fill_crc_tables(void)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_tables[0][n] = crc;
    }
    for (int n = 0; n < 256; n++)
        for (int table = 1; table < 8; table++)
            crc_tables[table][n] = crc_tables[table - 1][n] >> 8 ^ crc_tables[0][crc_tables[table - 1][n] & 0xFF];
}

static uint32_t add_crc(uint32_t crc, const unsigned char *bytes, Py_ssize_t length)
{
    for (; length >= 8; length -= 8, bytes += 8) {
        uint32_t low = crc ^ (bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);
        crc = crc_tables[7][low & 0xFF] ^ crc_tables[6][low >> 8 & 0xFF] ^ crc_tables[5][low >> 16 & 0xFF]
            ^ crc_tables[4][low >> 24] ^ crc_tables[3][bytes[4]] ^ crc_tables[2][bytes[5]] ^ crc_tables[1][bytes[6]]
            ^ crc_tables[0][bytes[7]];
    }
    for (; length > 0; length--) crc = crc >> 8 ^ crc_tables[0][(crc ^ *bytes++) & 0xFF];
    return crc;
}

/* bytes that wait to be summed: no token but a text is longer than the room that is kept */
#define SUMMED 256
#define LONGEST_TOKEN 16
#define DEEPEST 50
/* items of a stream; as in elastic_state.py */
#define LARGEST_COUNT (1LL << 53)

typedef struct {
    uint32_t crc;
    int length;
    unsigned char bytes[SUMMED];
} Sum;

static void flush_sum(Sum *sum)
{
    sum->crc = add_crc(sum->crc, sum->bytes, sum->length);
    sum->length = 0;
}

static unsigned char *reserve_token(Sum *sum)
{
    if (sum->length > SUMMED - LONGEST_TOKEN) flush_sum(sum);
    return sum->bytes + sum->length;
}

static void add_number(Sum *sum, char type, uint32_t number)
{
    unsigned char *token = reserve_token(sum);
    token[0] = (unsigned char)type;
    for (int n = 0; n < 4; n++) token[1 + n] = (unsigned char)(number >> 8 * n);
    sum->length += 5;
}

static void add_byte(Sum *sum, char type)
{
    *reserve_token(sum) = (unsigned char)type;
    sum->length++;
}

static int add_integer(Sum *sum, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow || number == LLONG_MIN) return 0;
    if (number >= INT32_MIN && number <= INT32_MAX) {
        add_number(sum, 'i', (uint32_t)number);
        return 1;
    }
    /* marshal writes digits of 15 bits, the lowest first, after their number, which has the sign */
    unsigned long long rest = number < 0 ? (unsigned long long)-number : (unsigned long long)number;
    int digits = 0;
    for (unsigned long long left = rest; left; left >>= 15) digits++;
    add_number(sum, 'l', (uint32_t)(number < 0 ? -digits : digits));
    unsigned char *token = reserve_token(sum);
    for (; rest; rest >>= 15, token += 2) {
        token[0] = (unsigned char)(rest & 0xFF);
        token[1] = (unsigned char)(rest >> 8 & 0x7F);
    }
    sum->length += 2 * digits;
    return 1;
}

static int add_text(Sum *sum, PyObject *value)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(value, &length);
    if (text == NULL || length > INT32_MAX) {
        /* surrogates, or no memory: Python says which */
        PyErr_Clear();
        return 0;
    }
    add_number(sum, 'u', (uint32_t)length);
    if (length <= SUMMED - sum->length) {
        memcpy(sum->bytes + sum->length, text, (size_t)length);
        sum->length += (int)length;
        return 1;
    }
    flush_sum(sum);
    sum->crc = add_crc(sum->crc, (const unsigned char *)text, length);
    return 1;
}

/* a new reference, or NULL without an error where there is none any more */
static PyObject *list_item(PyObject *list, Py_ssize_t place)
{
#ifdef FREE_THREADED
    PyObject *item = PyList_GetItemRef(list, place);
    if (item == NULL) PyErr_Clear();
    return item;
#else
    if (place >= PyList_Size(list)) return NULL;
    PyObject *item = PyList_GetItem(list, place);
    Py_XINCREF(item);
    return item;
#endif
}

static int add_value(Sum *sum, PyObject *value, int depth);

static int add_list(Sum *sum, PyObject *list, int depth)
{
    Py_ssize_t length = PyList_Size(list);
    if (length > INT32_MAX) return 0;
    add_number(sum, '[', (uint32_t)length);
    for (Py_ssize_t place = 0; place < length; place++) {
        PyObject *item = list_item(list, place);
        int known = item != NULL && add_value(sum, item, depth + 1);
        Py_XDECREF(item);
        if (!known) return 0;
    }
    return 1;
}

static int add_dict(Sum *sum, PyObject *dict, int depth)
{
    PyObject *items = PyDict_Items(dict);
    if (items == NULL) {
        PyErr_Clear();
        return 0;
    }
    add_byte(sum, '{');
    int known = 1;
    Py_ssize_t length = PyList_Size(items);
    for (Py_ssize_t place = 0; known && place < length; place++) {
        PyObject *pair = PyList_GetItem(items, place);
        known = add_value(sum, PyTuple_GetItem(pair, 0), depth + 1) && add_value(sum, PyTuple_GetItem(pair, 1), depth + 1);
    }
    Py_DECREF(items);
    add_byte(sum, '0');
    return known;
}

/* 1, or 0 for a value that Python sums; never an error */
static int add_value(Sum *sum, PyObject *value, int depth)
{
    if (depth > DEEPEST) return 0;
    if (PyLong_CheckExact(value)) return add_integer(sum, value);
    if (PyUnicode_CheckExact(value)) return add_text(sum, value);
    if (PyList_CheckExact(value)) return add_list(sum, value, depth);
    if (PyDict_CheckExact(value)) return add_dict(sum, value, depth);
    if (value != Py_None && value != Py_True && value != Py_False) return 0;
    add_byte(sum, value == Py_None ? 'N' : value == Py_True ? 'T' : 'F');
    return 1;
}

/* the part of each memory that lasts as a list; NULL, perhaps without an error, for what Python has to see */
static PyObject *list_lasting(PyObject *memories)
{
    Py_ssize_t length = PyList_Size(memories);
    PyObject *parts = PyList_New(length);
    for (Py_ssize_t place = 0; parts != NULL && place < length; place++) {
        PyObject *memory = list_item(memories, place), *part = NULL;
        if (memory == Py_None) part = Py_NewRef(Py_None);
        else if (memory != NULL && PyList_CheckExact(memory)) part = list_item(memory, 1);
        Py_XDECREF(memory);
        if (part == NULL || PyList_SetItem(parts, place, part) < 0) Py_CLEAR(parts);
    }
    return parts;
}

/* what changes of a stream's memories; 0 where a part that lasts is another one than before, or Python has to sum */
static int add_changing(Sum *sum, PyObject *memories, PyObject *lasting)
{
    Py_ssize_t length = PyList_Size(memories);
    if (!PyList_CheckExact(lasting) || PyList_Size(lasting) != length) return 0;
    add_number(sum, '[', (uint32_t)length);
    int known = 1;
    for (Py_ssize_t place = 0; known && place < length; place++) {
        PyObject *memory = list_item(memories, place), *before = list_item(lasting, place), *part = NULL;
        if (memory == Py_None) {
            add_byte(sum, 'N');
            known = before == Py_None;
        } else if (memory != NULL && PyList_CheckExact(memory)) {
            part = list_item(memory, 1);
            known = part != NULL && part == before;
            Py_XDECREF(part);
            part = list_item(memory, 0);
            known = known && part != NULL && add_value(sum, part, 0);
            Py_XDECREF(part);
        } else {
            known = 0;
        }
        Py_XDECREF(memory);
        Py_XDECREF(before);
    }
    return known;
}

/* 1 where a stream's state was summed, its lasting parts being known; 0 where not */
static int sum_changing(Sum *sum, PyObject *state, PyObject *memories, PyObject *lasting, PyObject *lasting_sum)
{
    sum->length = 0;
    sum->crc = ~(uint32_t)PyLong_AsUnsignedLong(lasting_sum);
    add_number(sum, '[', 5);
    for (Py_ssize_t place = 0; place < 4; place++) {
        PyObject *item = list_item(state, place);
        int known = item != NULL && add_value(sum, item, 0);
        Py_XDECREF(item);
        if (!known) return 0;
    }
    if (!add_changing(sum, memories, lasting)) return 0;
    flush_sum(sum);
    return 1;
}

static PyObject *sum_known(PyObject *state, PyObject *before)
{
    PyObject *memories = list_item(state, 4), *result = NULL;
    PyObject *lasting = Py_XNewRef(PyTuple_GetItem(before, 2)), *lasting_sum = Py_XNewRef(PyTuple_GetItem(before, 3));
    PyObject *begin = PyTuple_GetItem(before, 4);
    Sum sum;
    if (memories == NULL || !PyList_CheckExact(memories)) goto done;
    if (!sum_changing(&sum, state, memories, lasting, lasting_sum)) {
        PyErr_Clear();
        sum.length = 0;
        sum.crc = ~(uint32_t)PyLong_AsUnsignedLong(begin);
        Py_CLEAR(lasting);
        lasting = list_lasting(memories);
        if (lasting == NULL || !add_value(&sum, lasting, 0)) goto done;
        flush_sum(&sum);
        Py_CLEAR(lasting_sum);
        lasting_sum = PyLong_FromUnsignedLong(~sum.crc);
        if (lasting_sum == NULL || !sum_changing(&sum, state, memories, lasting, lasting_sum)) goto done;
    }
    PyObject *summed = PyErr_Occurred() ? NULL : PyLong_FromUnsignedLong(~sum.crc);
    if (summed != NULL) {
        result = PyTuple_Pack(5, state, summed, lasting, lasting_sum, begin);
        Py_DECREF(summed);
    }
done:
    Py_XDECREF(memories);
    Py_XDECREF(lasting);
    Py_XDECREF(lasting_sum);
    return result;
}

static const char sum_streams_doc[] =
    "sum_streams(stream_states, sums): sums by stream what is another state than in `sums`, as\n"
    "elastic_state.sum_stream does; returns the items given and the sum of all, or None where Python has to sum.";

/* 1; 0 where Python has to sum, perhaps with an error */
static int sum_named(PyObject *name, PyObject *state, PyObject *sums, long long *received, uint32_t *total)
{
    PyObject *before = Py_XNewRef(PyDict_GetItemWithError(sums, name));
    if (before == NULL || !PyTuple_CheckExact(before) || PyTuple_Size(before) != 5) {
        Py_XDECREF(before);
        return 0;
    }
    int running = PyList_CheckExact(state) && PyList_Size(state) == 5;
    if (PyTuple_GetItem(before, 0) != state) {
        PyObject *now = running ? sum_known(state, before) : NULL;
        Py_DECREF(before);
        before = now;
        if (now == NULL || PyDict_SetItem(sums, name, now) < 0) {
            Py_XDECREF(now);
            return 0;
        }
    }
    long long given = 0;
    if (state != Py_None) {
        PyObject *count = PyList_CheckExact(state) ? list_item(state, 0) : NULL;
        given = count == NULL ? -1 : PyLong_AsLongLong(count);
        Py_XDECREF(count);
    }
    *total ^= (uint32_t)PyLong_AsUnsignedLong(PyTuple_GetItem(before, 1));
    Py_DECREF(before);
    if (given < 0 || given > LARGEST_COUNT) return 0;
    *received += given;
    return !PyErr_Occurred();
}

static PyObject *sum_streams(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyDict_CheckExact(arguments[0]) || !PyDict_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "sum_streams(stream_states, sums) takes two dictionaries");
        return NULL;
    }
    PyObject *names = PyDict_Keys(arguments[0]), *states = PyDict_Values(arguments[0]);
    long long received = 0;
    uint32_t total = 0;
    int known = names != NULL && states != NULL && PyList_Size(names) == PyList_Size(states);
    for (Py_ssize_t place = 0; known && place < PyList_Size(names); place++)
        known = sum_named(
            PyList_GetItem(names, place), PyList_GetItem(states, place), arguments[1], &received, &total);
    Py_XDECREF(names);
    Py_XDECREF(states);
    if (known) return Py_BuildValue("Lk", received, (unsigned long)total);
    /* whatever it was, Python meets it again */
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* Writes the addresses that a shuffle has taken in, as webdataset.stages.address_codec.AddressLog does. */

#define MOST_STEPS 64
/* three numbers of 20 signs, two spaces and the check */
#define LONGEST_STEP 63
#define LARGEST_PART (1LL << 61)
static const char check_signs[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+,./";

static char *write_number(char *end, long long number)
{
    char digits[24];
    int length = 0;
    if (number < 0) {
        *end++ = '-';
        number = -number;
    }
    do digits[length++] = (char)('0' + number % 10);
    while (number /= 10);
    while (length > 0) *end++ = digits[--length];
    return end;
}

/* 1 where an address is a reader's: four numbers that are not too large */
static int read_address(PyObject *address, long long *parts)
{
    if (address == NULL || !PyTuple_Check(address) || PyTuple_Size(address) != 4) return 0;
    for (int n = 0; n < 4; n++) {
        PyObject *part = PyTuple_GetItem(address, n);
        int overflow = 0;
        if (!PyLong_CheckExact(part)) return 0;
        parts[n] = PyLong_AsLongLongAndOverflow(part, &overflow);
        if (overflow || parts[n] >= LARGEST_PART || parts[n] <= -LARGEST_PART) return 0;
    }
    return parts[3] >= 0 && parts[3] < (long long)sizeof check_signs - 1;
}

static const char write_steps_doc[] =
    "write_steps(entered, written, stop, start): the addresses before `stop` that are not written yet, as text; None\n"
    "where Python has to write them. The first after `start` is written in full.";

static PyObject *write_steps(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Py_ssize_t range[3];
    if (count != 4 || !PyList_CheckExact(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "write_steps(entered, written, stop, start) takes a list and three numbers");
        return NULL;
    }
    for (int n = 0; n < 3; n++) {
        range[n] = PyLong_AsSsize_t(arguments[n + 1]);
        if (range[n] < 0) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "write_steps() takes no numbers below 0");
            return NULL;
        }
    }
    if (range[1] - range[0] > MOST_STEPS) Py_RETURN_NONE;
    char text[MOST_STEPS * LONGEST_STEP], *end = text;
    long long before[4] = {0, 0, 0, 0}, now[4];
    int known = 1;
    for (Py_ssize_t place = range[0] > range[2] ? range[0] - 1 : range[0]; known && place < range[1]; place++) {
        PyObject *address = list_item(arguments[0], place);
        known = read_address(address, now);
        Py_XDECREF(address);
        if (known && place >= range[0]) {
            long long bytes = now[2] - before[2];
            if (now[0] == before[0] && now[1] - before[1] == 1 && bytes % BLOCK == 0) {
                end = write_number(end, bytes / BLOCK);
            } else {
                end = write_number(end, now[0] - before[0]);
                *end++ = ' ';
                end = write_number(end, now[1] - before[1]);
                *end++ = ' ';
                end = write_number(end, bytes);
            }
            *end++ = check_signs[now[3]];
        }
        memcpy(before, now, sizeof before);
    }
    if (known) return PyUnicode_FromStringAndSize(text, end - text);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"write_steps", (PyCFunction)(void (*)(void))write_steps, METH_FASTCALL, write_steps_doc},
    {"sum_streams", (PyCFunction)(void (*)(void))sum_streams, METH_FASTCALL, sum_streams_doc},
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
    .m_doc = "The usual case of reading samples, in C; webdataset.samples.native_core decides whether it is used.",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module_definition);
}
