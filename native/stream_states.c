/* Two functions of states: sums of streams, and the addresses of a shuffle. Unusual values are Python's.

   Sums streams' states as webdataset.flow.elastic_state.sum_stream does: the CRC-32 of what marshal makes of them in its
   oldest form. Known are None, booleans, whole numbers of 64 bits, text, lists and dictionaries; for anything else it
   returns None, and Python sums. */

#include "core.h"

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
    RETURN_NONE;
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
    if (range[1] - range[0] > MOST_STEPS) RETURN_NONE;
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
    RETURN_NONE;
}
