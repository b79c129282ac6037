/* What items pass between two stages whose times are measured: webdataset.flow.timing.pass_gate and pass_outlet. Both
   hold no item, and raise what they call raises. */

#include "core.h"

typedef struct {
    PyObject_HEAD
    PyObject *items;   /* an iterator; NULL once it has ended or raised */
    PyObject *step;    /* called with the iterator for an item that is timed */
    PyObject *timing;  /* of a gate, a bytearray: its first byte tells whether this step is timed; else NULL */
    Py_ssize_t gap;    /* of an outlet: items that pass before the next timed one */
    int busy;          /* a call is at work */
} Gate;

/* The next item of an iterator; NULL at its end, or with an error. */
static PyObject *draw_next(PyObject *items)
{
    iternextfunc next = (iternextfunc)PyType_GetSlot(Py_TYPE(items), Py_tp_iternext);
    PyObject *item = next(items);
    if (item == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_StopIteration)) PyErr_Clear();
    return item;
}

/* Lets go of the iterator at its end or after an error, as a generator does: what is asked then gets nothing. */
static PyObject *end_gate(Gate *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_CLEAR(self->items);
    PyErr_Restore(type, value, traceback);
    if (type != NULL && PyErr_ExceptionMatches(PyExc_StopIteration)) PyErr_Clear();
    return NULL;
}

static PyObject *draw_gate(Gate *self)
{
    if (self->items == NULL) return NULL;
    const char *timing = PyByteArray_AsString(self->timing);
    PyObject *item = timing[0] ? PyObject_CallFunctionObjArgs(self->step, self->items, NULL) : draw_next(self->items);
    return item == NULL ? end_gate(self) : item;
}

static PyObject *draw_outlet(Gate *self)
{
    PyObject *item = NULL, *found;
    if (self->items == NULL) return NULL;
    if (self->gap > 0) {
        self->gap--;
        item = draw_next(self->items);
        if (item != NULL) return item;
        /* the end is found in a timed step */
        if (PyErr_Occurred()) return end_gate(self);
    }
    found = PyObject_CallFunctionObjArgs(self->step, self->items, NULL);
    if (found != NULL && PyTuple_CheckExact(found) && PyTuple_Size(found) == 2) {
        self->gap = PyLong_AsSsize_t(PyTuple_GetItem(found, 1));
        if (self->gap != -1 || !PyErr_Occurred()) {
            item = PyTuple_GetItem(found, 0);
            Py_INCREF(item);
        }
    }
    else if (found != NULL) PyErr_SetString(PyExc_TypeError, "a timed step gives an item and a number");
    Py_XDECREF(found);
    return item == NULL ? end_gate(self) : item;
}

/* Items are drawn by one thread at a time, and not by what is being drawn, as from a generator. */
static PyObject *draw_alone(Gate *self, PyObject *(*draw_item)(Gate *))
{
    if (SWAP(&self->busy, 1)) {
        PyErr_SetString(PyExc_ValueError, "a pipeline is drawn from twice at once");
        return NULL;
    }
    PyObject *item = draw_item(self);
    SWAP(&self->busy, 0);
    return item;
}

static PyObject *Gate_next(Gate *self)
{
    return draw_alone(self, draw_gate);
}

static PyObject *Outlet_next(Gate *self)
{
    return draw_alone(self, draw_outlet);
}

static PyObject *make_gate(PyTypeObject *type, PyObject *items, PyObject *step, PyObject *timing)
{
    if (!PyIter_Check(items)) {
        PyErr_SetString(PyExc_TypeError, "a gate stands after an iterator");
        return NULL;
    }
    if (timing != NULL && PyByteArray_Size(timing) < 1) {
        PyErr_SetString(PyExc_ValueError, "a gate asks one byte");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Gate *self = (Gate *)allocate(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(items);
    self->items = items;
    Py_INCREF(step);
    self->step = step;
    Py_XINCREF(timing);
    self->timing = timing;
    return (PyObject *)self;
}

static PyObject *Gate_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *items, *step, *timing;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OOO!", &items, &step, &PyByteArray_Type, &timing)) return NULL;
    return make_gate(type, items, step, timing);
}

static PyObject *Outlet_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *items, *step;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OO", &items, &step)) return NULL;
    return make_gate(type, items, step, NULL);
}

static int Gate_traverse(Gate *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->items);
    Py_VISIT(self->step);
    Py_VISIT(self->timing);
    return 0;
}

static int Gate_clear(Gate *self)
{
    Py_CLEAR(self->items);
    Py_CLEAR(self->step);
    Py_CLEAR(self->timing);
    return 0;
}

static void Gate_dealloc(Gate *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack((PyObject *)self);
    Gate_clear(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF((PyObject *)type);
}

static PyObject *gate_itself(PyObject *self)
{
    Py_INCREF(self);
    return self;
}

#define GATE_SLOTS(doc, new, next) { \
    {Py_tp_doc, (void *)(doc)}, {Py_tp_new, (void *)(new)}, {Py_tp_dealloc, (void *)Gate_dealloc}, \
    {Py_tp_traverse, (void *)Gate_traverse}, {Py_tp_clear, (void *)Gate_clear}, {Py_tp_iter, (void *)gate_itself}, \
    {Py_tp_iternext, (void *)(next)}, {0, NULL}, }

static PyType_Slot Gate_slots[] = GATE_SLOTS(
    "Gate(items, step, timing): lets the items of an iterator pass; those that step(items) draws while timing[0] is set.",
    Gate_new, Gate_next);

static PyType_Slot Outlet_slots[] = GATE_SLOTS(
    "Outlet(items, step): lets the items of an iterator pass; step(items) draws one, and says how many pass after it.",
    Outlet_new, Outlet_next);

static PyType_Spec Gate_spec = {
    .name = "webdataset._native.Gate", .basicsize = sizeof(Gate),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .slots = Gate_slots,
};

static PyType_Spec Outlet_spec = {
    .name = "webdataset._native.Outlet", .basicsize = sizeof(Gate),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .slots = Outlet_slots,
};
