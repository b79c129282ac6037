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
   to Python it is as if the chunk had ended there. Before a body of LARGE bytes the call ends if samples wait to be
   given, so that they do not lie in memory beside it.

   Where a chunk of a file cuts off a small member, the next chunk begins with what there is of it. Chunks are small, so
   that they stay in the processor's cache; Python is given the samples of several of them at a time.

   Of a mapped file, samples get parts of a memoryview of the map in place of bytes. Headers are still read by system
   calls, so that nothing here touches the map: a file that is cut meanwhile is seen, and does not end the process. A
   body that the chunk cuts off is gone past: the next chunk begins where the next header does. */

#include "core.h"

#define KNOWN 64
#define KNOWN_BYTES 48
/* bytes of a body from which on a read of its own costs less than to copy it */
#define WORTH_A_READ (16 * 1024)
/* the samples before a body of so many bytes are given before it is read; as in scanner.py */
#define LARGE (128 * 1024)
/* bodies of more bytes are Python's, which bounds them by the memory that there is; less than in member_sizes.py */
#define MOST_IN_ONE_READ (64 * 1024 * 1024)
/* bytes that are read with a body: at least, and from which on they are a chunk */
#define LEAST_AHEAD 4096
#define MOST_AHEAD (256 * 1024)
/* bytes that are read at a time where members are small: what stays in a processor's cache, with what is made of them */
#define CHUNK (128 * 1024)

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
    PyObject *mapped; /* borrowed: a memoryview of the whole file, or NULL where samples get bytes */
    long long length; /* offset at which the file ends, as it was opened: no body ends after it */
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

/* The same of a mapped file, from the position `at` on, which lies at the end of the chunk or after it. What is gone past
   counts as read: it bounds how many samples wait. */
static int read_chunk_at(Source *source, Py_ssize_t at, Py_ssize_t size)
{
    Py_ssize_t count = 0;
    PyObject *next = PyBytes_FromStringAndSize(NULL, size);
    if (next == NULL) return -1;
#ifndef _WIN32
    char *bytes = PyBytes_AsString(next);
    Py_BEGIN_ALLOW_THREADS
    count = (Py_ssize_t)pread(source->file, bytes, (size_t)size, (off_t)(source->base + at));
    Py_END_ALLOW_THREADS
#endif
    if (count <= 0) {
        Py_DECREF(next);
        return 0;
    }
    source->left -= at - source->end + count;
    Py_DECREF(source->buffer);
    return replace_chunk(source, next, count, source->base + at) < 0 ? -1 : 1;
}

/* End a chunk of a mapped file where the next header begins, so that no more than padding is to be skipped; the position
   after it, or -1 with MemoryError. */
static Py_ssize_t end_chunk_at(Source *source, Py_ssize_t at)
{
    long long there = source->base + at < source->length ? source->base + at : source->length;
    Py_ssize_t rest = (Py_ssize_t)(source->base + at - there);
    PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
    if (nothing == NULL) return -1;
    Py_DECREF(source->buffer);
    return replace_chunk(source, nothing, 0, there) < 0 ? -1 : rest;
}

/* Read the next chunk, which begins with what this one has from `at` on: a member that it cuts off. 1 where more came, 0
   at the end, -1 with MemoryError. */
static int extend_chunk(Source *source, Py_ssize_t at)
{
    Py_ssize_t rest = source->end - at;
    /* a read that ends at a page is the fastest */
    Py_ssize_t size = (source->left < CHUNK ? source->left : CHUNK) / LEAST_AHEAD * LEAST_AHEAD + LEAST_AHEAD
        - (Py_ssize_t)((source->base + source->end) % LEAST_AHEAD);
    PyObject *next = PyBytes_FromStringAndSize(NULL, rest + size);
    if (next == NULL) return -1;
    memcpy(PyBytes_AsString(next), source->data + at, (size_t)rest);
    Py_ssize_t count = read_file(source->file, NULL, 0, PyBytes_AsString(next) + rest, size);
    if (count <= 0) {
        Py_DECREF(next);
        return 0;
    }
    source->left -= count;
    Py_DECREF(source->buffer);
    return replace_chunk(source, next, rest + count, source->base + at) < 0 ? -1 : 1;
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

/* Choose how many bytes to read with the next body: as many as lay between the last two large ones, or ever more; in
   steps of `least`. */
static void plan_ahead(Taker *self, long long header, Py_ssize_t size, long long end, Py_ssize_t least)
{
    if (size >= WORTH_A_READ) {
        long long between = header - self->body_end + BLOCK;
        long long next = between > MOST_AHEAD ? self->ahead : (between + least - 1) & -(long long)least;
        /* a little less is no reason: small members vary */
        if (next > self->ahead || self->ahead - next >= LEAST_AHEAD) self->ahead = (Py_ssize_t)next;
        if (self->ahead < least) self->ahead = least;
        self->body_end = end;
    }
    else self->ahead *= 2;
    /* small ones come: Python reads chunks */
    if (self->ahead >= MOST_AHEAD) self->ahead = 0;
}

PyDoc_STRVAR(take_doc,
"take(buf, pos, base, sample, key, start, samples, offsets, file, length, most, mapped)\n"
"-> (buf, pos, base, sample, key, start, more)\n\n"
"Take members from a chunk, and from the file after it.\n\n"
"buf: bytes; pos: where a header begins; base: offset of the chunk in the stream; sample: the one in progress, or None;\n"
"key: its key; start: where it starts; samples, offsets: lists that get the samples that are complete, and where each\n"
"starts; file: descriptor of the file that continues the chunk, or -1; length: its bytes; most: bytes from which on no\n"
"more are read from it; mapped: a memoryview of the whole file, whose parts samples get in place of bytes, or None: then\n"
"the file's position stays where it is. The new chunk is the last that was read. The new position may lie up to 511 bytes after the\n"
"chunk: padding that is to be skipped. sample is None, too, where the last one is complete. more: only `most`, or a large\n"
"body to come, ended it; it continues from there, once the samples have been taken out of the lists.");

static PyObject *take(Taker *self, PyObject *args)
{
    PyObject *buffer, *sample, *key, *samples, *offsets, *mapped, *key_bytes = NULL, *spent = NULL, *payload = NULL;
    Source source;
    Py_ssize_t pos;
    long long start;
    Py_ssize_t key_length = 0;
    int more = 0;
    char present[2 * BLOCK]; /* the bytes of the present key */

    if (!PyArg_ParseTuple(args, "OnLOOLOOiLnO", &buffer, &pos, &source.base, &sample, &key, &start, &samples, &offsets,
                          &source.file, &source.length, &source.left, &mapped))
        return NULL;
    source.mapped = mapped == Py_None ? NULL : mapped;
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
    /* headers are read alone from a mapped file */
    Py_ssize_t step = source.mapped ? BLOCK : LEAST_AHEAD;
    if (sample != Py_None) {
        key_bytes = PyUnicode_AsEncodedString(key, "utf-8", "surrogateescape");
        if (key_bytes == NULL) goto failed;
        key_length = PyBytes_Size(key_bytes);
        /* a key of a long name (PAX, GNU): what continues it is no plain header of ours but for its first bytes */
        if (key_length > (Py_ssize_t)sizeof present) goto stop;
        memcpy(present, PyBytes_AsString(key_bytes), (size_t)key_length);
    }
    int extend = 0; /* the member at `pos` is cut off by the end of the chunk: more is read first */
    for (;;) {
        if (extend) {
            extend = 0;
            /* large members, and those of a map, are read in other ways */
            if (source.file < 0 || source.mapped || self->ahead) break;
            if (source.left <= 0) {
                more = 1;
                break;
            }
            Py_ssize_t kept = pos < source.end ? pos : source.end;
            int came = extend_chunk(&source, kept);
            if (came < 0) goto failed;
            if (came == 0) break;
            pos -= kept;
        }
        Py_ssize_t at = pos, end = source.end;
        if (at >= end && source.file >= 0 && self->ahead) {
            /* a chunk that ended between two members, among large ones */
            if (source.left <= 0) {
                more = 1;
                break;
            }
            int came = source.mapped ? read_chunk_at(&source, at, self->ahead)
                                     : read_chunk(&source, at - end + self->ahead);
            if (came < 0) goto failed;
            if (came == 0) break;
            pos = source.mapped ? 0 : at - end;
            plan_ahead(self, 0, 0, 0, step);
            continue;
        }
        if (at > end || end - at < BLOCK) {
            extend = 1;
            continue;
        }
        const unsigned char *header = (const unsigned char *)source.data + at;
        if (header[156] == 'x') {
            if (end - at < 3 * BLOCK) {
                extend = 1;
                continue;
            }
            if (!is_checksum_right(header)) break;
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
            /* what it declares and the file does not have is not allocated */
            if (source.file < 0 || size > source.length - source.base - body) break;
            if (!source.mapped && size > MOST_IN_ONE_READ) break;
            if (!source.mapped && !self->ahead && size - (end - body) < WORTH_A_READ) {
                extend = 1;
                continue;
            }
            if (source.left <= 0 && (source.mapped || size < LARGE)) {
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
        if (cut && size >= LARGE && !source.mapped) {
            if (!continues && sample != Py_None) {
                if (append_sample(samples, offsets, sample, start) < 0) goto failed;
                Py_DECREF(sample);
                Py_INCREF(Py_None);
                sample = Py_None;
            }
            Py_ssize_t waiting = PyList_Size(samples);
            if (waiting < 0) goto failed;
            if (waiting || source.left <= 0) {
                more = 1;
                break;
            }
        }
        long long first = source.base + pos; /* of the PAX header, where there is one */
        long long stops = source.base + body + size;
        if (source.mapped) {
            long long place = source.base + body;
            payload = PySequence_GetSlice(source.mapped, (Py_ssize_t)place, (Py_ssize_t)stops);
            if (payload == NULL) goto failed;
            pos = body + (Py_ssize_t)((size + BLOCK - 1) & ~(long long)(BLOCK - 1));
        }
        else if (cut) {
            payload = read_body(&source, pos, body, (Py_ssize_t)size, self->ahead ? self->ahead : LEAST_AHEAD, &spent);
            if (payload == NULL && PyErr_Occurred()) {
                if (size < LARGE || !PyErr_ExceptionMatches(PyExc_MemoryError)) goto failed;
                /* Python finds no memory for it, too, and says so */
                PyErr_Clear();
                break;
            }
            if (payload == NULL) {
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
        if (source.mapped && size >= WORTH_A_READ)
            plan_ahead(self, stops - size - BLOCK, (Py_ssize_t)size, (stops + BLOCK - 1) & -BLOCK, step);
        else if (cut || (self->ahead && size >= WORTH_A_READ)) plan_ahead(self, first, (Py_ssize_t)size, stops, step);
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
    if (source.mapped && pos > source.end) {
        pos = end_chunk_at(&source, pos);
        if (pos < 0) goto failed;
    }
    else if (source.end < PyBytes_Size(source.buffer)) {
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

#ifndef _WIN32
#ifdef __APPLE__
#define CHANGED st_mtimespec
#else
#define CHANGED st_mtim
#endif

PyDoc_STRVAR(is_unchanged_doc,
"is_unchanged(file, length, changed_ns) -> bool\n\n"
"Whether an open file has so many bytes, and was last changed at this time. False, too, where it cannot be asked.");

static int is_same_file(int file, long long length, long long changed_ns)
{
    struct stat status;
    return fstat(file, &status) == 0 && (long long)status.st_size == length
        && (long long)status.CHANGED.tv_sec * 1000000000 + status.CHANGED.tv_nsec == changed_ns;
}

/* os.fstat takes five times as long: it makes an object of 19 entries */
static PyObject *is_unchanged(PyObject *module, PyObject *args)
{
    int file;
    long long length, changed_ns;
    (void)module;
    if (!PyArg_ParseTuple(args, "iLL", &file, &length, &changed_ns)) return NULL;
    return PyBool_FromLong(is_same_file(file, length, changed_ns));
}
#endif
