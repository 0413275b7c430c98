/* The functions of kernels.py in C, for arrays of float64 and int64 with one dimension, aligned, in the byte order of
 * the machine. Everything else goes to the function of the same name in kernels.py, errors included: `fall_back`.
 *
 * Answers are those of kernels.py, bit by bit. Sums are dot products by NumPy's own function for float64, which calls
 * the BLAS, as `np.vdot` does; extremes are found by NumPy's own `argmax` and `argmin`. Compile it without contraction
 * of products and sums (-ffp-contract=off).
 */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <stdlib.h>
#include <string.h>
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED) \
    && __has_include(<internal/pycore_dict.h>)
#define Py_BUILD_CORE
#undef _PyGC_FINALIZED /* which the headers of CPython 3.12 define both for and against this */
#include <internal/pycore_dict.h> /* for `prefetch_each` alone, which changes nothing */
#define KNOWS_DICTIONARIES
#endif

#define SHORT 4096 /* longer columns are rare, and summed in another way */
#define CLOSE 1e-7
#define HUGE_MEAN 1e290

enum {
    APPEND_ROW, COPY_ROWS, COUNT_NEW, COUPONS, FIND_EACH, FIND_NAMED, FIRST_AFTER, FIRST_FROM, GATHER, IS_SORTED,
    JOIN_POWERS, KNOWN_ROWS, LARGEST, LARGESTS, LAST_BEFORE, MERGE, POWERS, ROWS_AT, SLIDE_REGISTERS, SMALLEST, SMALLESTS,
    TOTAL, TOTALS, FUNCTIONS
};
enum { ABSENT = -1, UNCLEAR = -2 };
static PyObject *plain[FUNCTIONS]; /* the functions of kernels.py */
static double ones[SHORT];
static PyArray_DotFunc *dot_float64;

typedef PyObject *const *Arguments;

static PyObject *
fall_back(int function, Arguments arguments, Py_ssize_t count)
{
    PyErr_Clear();
    return PyObject_Vectorcall(plain[function], arguments, count, NULL);
}

/* ------------------------------------------------------------------ arguments */

/* Returns the array where it has one dimension and the type, is aligned and native; else NULL. */
static PyArrayObject *
column_of(PyObject *given, int type)
{
    if (!PyArray_CheckExact(given))
        return NULL;
    PyArrayObject *array = (PyArrayObject *)given;
    int fits = PyArray_NDIM(array) == 1 && PyArray_TYPE(array) == type && PyArray_ISBEHAVED_RO(array);
    return fits ? array : NULL;
}

static int
is_contiguous(PyArrayObject *column)
{
    return PyArray_STRIDE(column, 0) == PyArray_ITEMSIZE(column) || PyArray_DIM(column, 0) <= 1;
}

/* Reads rows start..stop, which must be there; returns whether they are. */
static int
rows_of(PyObject *start, PyObject *stop, npy_intp length, npy_intp *first, npy_intp *behind)
{
    if (!PyLong_CheckExact(start) || !PyLong_CheckExact(stop))
        return 0;
    *first = PyLong_AsSsize_t(start);
    *behind = PyLong_AsSsize_t(stop);
    return *first >= 0 && *first <= *behind && *behind <= length;
}

static double
dot(const double *a, const double *b, npy_intp n)
{
    double out = 0.0;
    if (n)
        dot_float64((void *)a, sizeof(double), (void *)b, sizeof(double), &out, n, NULL);
    return out;
}

/* Returns rows of float64 that lie side by side, SHORT of them at most; NULL where they are of another kind. */
static const double *
numbers_of(Arguments arguments, npy_intp *n)
{
    npy_intp start, stop;
    PyArrayObject *column = column_of(arguments[0], NPY_DOUBLE);
    if (!column || !is_contiguous(column) || !rows_of(arguments[1], arguments[2], PyArray_DIM(column, 0), &start, &stop))
        return NULL;
    *n = stop - start;
    return *n <= SHORT ? (const double *)PyArray_DATA(column) + start : NULL;
}

/* ------------------------------------------------------------------ writing */

static int
put(PyObject *given, npy_intp row, PyObject *value)
{
    PyArrayObject *column = column_of(given, NPY_DOUBLE);
    if (column && PyFloat_CheckExact(value) && row < PyArray_DIM(column, 0) && PyArray_ISWRITEABLE(column)) {
        *(double *)PyArray_GETPTR1(column, row) = PyFloat_AS_DOUBLE(value);
        return 0;
    }
    column = column_of(given, NPY_INT64);
    if (column && PyLong_CheckExact(value) && row < PyArray_DIM(column, 0) && PyArray_ISWRITEABLE(column)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (!overflow) {
            *(npy_int64 *)PyArray_GETPTR1(column, row) = number;
            return 0;
        }
    }
    return PySequence_SetItem(given, row, value);
}

static PyObject *
append_row(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    if (count != 4 || !PyList_CheckExact(arguments[0]) || !PyLong_CheckExact(arguments[1]))
        return fall_back(APPEND_ROW, arguments, count);
    PyObject *columns = arguments[0];
    npy_intp row = PyLong_AsSsize_t(arguments[1]);
    PyObject *values = PyTuple_CheckExact(arguments[3]) ? arguments[3] : NULL;
    if (row < 0 || !values || PyTuple_GET_SIZE(values) >= PyList_GET_SIZE(columns))
        return fall_back(APPEND_ROW, arguments, count);
    if (put(PyList_GET_ITEM(columns, 0), row, arguments[2]))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values) && i + 1 < PyList_GET_SIZE(columns); i++)
        if (put(PyList_GET_ITEM(columns, i + 1), row, PyTuple_GET_ITEM(values, i)))
            return NULL;
    Py_RETURN_NONE;
}

/* Copies rows of numbers between two columns of one type; returns whether it could. */
static int
copy_numbers(PyObject *into, npy_intp at, PyObject *from, npy_intp start, npy_intp stop)
{
    int type = NPY_DOUBLE;
    PyArrayObject *source = column_of(from, type);
    if (!source)
        source = column_of(from, type = NPY_INT64);
    PyArrayObject *target = source ? column_of(into, type) : NULL;
    if (!target || !PyArray_ISWRITEABLE(target) || !is_contiguous(source) || !is_contiguous(target))
        return 0;
    if (stop > PyArray_DIM(source, 0) || at > PyArray_DIM(target, 0) - (stop - start))
        return 0;
    memmove(PyArray_BYTES(target) + at * 8, PyArray_BYTES(source) + start * 8, (stop - start) * 8);
    return 1;
}

static PyObject *
copy_rows(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp start, stop, at;
    if (count != 5 || !PyList_CheckExact(arguments[0]) || !PyList_CheckExact(arguments[2])
        || !rows_of(arguments[3], arguments[4], NPY_MAX_INTP, &start, &stop) || !PyLong_CheckExact(arguments[1])
        || (at = PyLong_AsSsize_t(arguments[1])) < 0
        || PyList_GET_SIZE(arguments[2]) > PyList_GET_SIZE(arguments[0]))
        return fall_back(COPY_ROWS, arguments, count);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arguments[2]); i++)
        if (!copy_numbers(PyList_GET_ITEM(arguments[0], i), at, PyList_GET_ITEM(arguments[2], i), start, stop))
            return fall_back(COPY_ROWS, arguments, count); /* all columns anew: the same rows are written again */
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ times */

static PyObject *
is_sorted(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    PyArrayObject *times = count == 1 ? column_of(arguments[0], NPY_INT64) : NULL;
    if (!times || !is_contiguous(times))
        return fall_back(IS_SORTED, arguments, count);
    const npy_int64 *time = PyArray_DATA(times);
    npy_intp n = PyArray_DIM(times, 0) - 1;
    for (npy_intp row = 0; row < n;) { /* stretches without a branch inside, so that several rows are compared at once */
        npy_intp end = row + 256 < n ? row + 256 : n;
        int back = 0;
        for (; row < end; row++)
            back |= time[row + 1] < time[row];
        if (back)
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

/* Finds the first of rows first..behind whose time is not smaller than `time`.
 *
 * The rows are in no cache as a rule. Seven of them are read at once and not one after the other, which takes a third
 * of the time: the misses do not wait for each other.
 */
static npy_intp
search(const char *times, npy_intp stride, npy_intp first, npy_intp behind, npy_int64 time)
{
#define TIME(row) (*(const npy_int64 *)(times + (row) * stride))
    while (behind - first >= 16) {
        npy_intp part = (behind - first) / 8, fewer = 0;
        for (int i = 1; i < 8; i++)
            fewer += TIME(first + i * part) < time;
        if (fewer < 7)
            behind = first + (fewer + 1) * part;
        if (fewer)
            first += fewer * part + 1;
    }
    while (first < behind && TIME(first) < time)
        first++;
    return first;
#undef TIME
}

static PyObject *
find(int function, Arguments arguments, Py_ssize_t count)
{
    npy_intp start, stop;
    PyArrayObject *times = count == 4 ? column_of(arguments[0], NPY_INT64) : NULL;
    if (!times || !rows_of(arguments[1], arguments[2], PyArray_DIM(times, 0), &start, &stop)
        || !PyLong_CheckExact(arguments[3]))
        return fall_back(function, arguments, count);
    int overflow;
    long long time = PyLong_AsLongLongAndOverflow(arguments[3], &overflow);
    if (overflow)
        return fall_back(function, arguments, count);
    if (function == FIRST_AFTER) {
        if (time == NPY_MAX_INT64)
            return PyLong_FromSsize_t(stop);
        time++;
    }
    return PyLong_FromSsize_t(search(PyArray_BYTES(times), PyArray_STRIDE(times, 0), start, stop, time));
}

static PyObject *
first_from(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    return find(FIRST_FROM, arguments, count);
}

static PyObject *
first_after(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    return find(FIRST_AFTER, arguments, count);
}

/* Returns a column of numbers or bools whose rows lie side by side, `rows` of them at least; else NULL. */
static PyArrayObject *
plain_column(PyObject *given, npy_intp rows)
{
    PyArrayObject *column = NULL;
    for (int type = 0; type < 3 && !column; type++)
        column = column_of(given, type == 0 ? NPY_INT64 : type == 1 ? NPY_DOUBLE : NPY_BOOL);
    return column && is_contiguous(column) && PyArray_DIM(column, 0) >= rows ? column : NULL;
}

static PyObject *
merge(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp skip, rows, k = -1, spare = 0;
    if (count < 4 || count > 5 || !PyList_CheckExact(arguments[0]) || !PyList_CheckExact(arguments[3])
        || !rows_of(arguments[1], arguments[2], NPY_MAX_INTP / 16, &skip, &rows) || !PyList_GET_SIZE(arguments[0])
        || PyList_GET_SIZE(arguments[0]) != PyList_GET_SIZE(arguments[3])
        || (count == 5 && (!PyLong_CheckExact(arguments[4]) || (spare = PyLong_AsSsize_t(arguments[4])) < 0)))
        return fall_back(MERGE, arguments, count);
    Py_ssize_t columns = PyList_GET_SIZE(arguments[0]);
    for (Py_ssize_t i = 0; i < columns; i++) {
        PyArrayObject *held = plain_column(PyList_GET_ITEM(arguments[0], i), rows);
        PyArrayObject *newcomers = plain_column(PyList_GET_ITEM(arguments[3], i), 0);
        if (!held || !newcomers || PyArray_TYPE(held) != PyArray_TYPE(newcomers)
            || (k >= 0 && PyArray_DIM(newcomers, 0) != k) || (!i && PyArray_TYPE(held) != NPY_INT64))
            return fall_back(MERGE, arguments, count);
        k = PyArray_DIM(newcomers, 0);
    }
    const npy_int64 *time = PyArray_DATA((PyArrayObject *)PyList_GET_ITEM(arguments[3], 0));
    const char *times = PyArray_DATA((PyArrayObject *)PyList_GET_ITEM(arguments[0], 0));
    for (npy_intp i = 1; i < k; i++)
        if (time[i] < time[i - 1])
            return fall_back(MERGE, arguments, count);
    npy_intp *before = malloc((k + 1) * sizeof(npy_intp)); /* how many of the rows come before each newcomer */
    PyObject *out = before ? PyList_New(columns) : PyErr_NoMemory();
    for (npy_intp i = 0, at = skip; out && i < k; i++)
        before[i] = at = time[i] == NPY_MAX_INT64 ? rows : search(times, 8, at, rows, time[i] + 1);
    npy_intp size = rows + k + spare;
    for (Py_ssize_t i = 0; out && i < columns; i++) {
        PyArrayObject *held = (PyArrayObject *)PyList_GET_ITEM(arguments[0], i);
        const char *old = PyArray_BYTES(held), *new = PyArray_BYTES((PyArrayObject *)PyList_GET_ITEM(arguments[3], i));
        npy_intp each = PyArray_ITEMSIZE(held), from = 0;
        PyArrayObject *merged = (PyArrayObject *)PyArray_SimpleNew(1, &size, PyArray_TYPE(held));
        if (!merged) {
            Py_CLEAR(out);
            break;
        }
        PyList_SET_ITEM(out, i, (PyObject *)merged);
        char *to = PyArray_BYTES(merged);
        for (npy_intp j = 0; j <= k; j++) {
            npy_intp stop = j < k ? before[j] : rows;
            memcpy(to, old + from * each, (stop - from) * each);
            to += (stop - from) * each;
            from = stop;
            if (j < k) {
                memcpy(to, new + j * each, each);
                to += each;
            }
        }
    }
    free(before);
    return out;
}

/* ------------------------------------------------------------------ names */

#define NAMES 64

/* Brings what a look-up of some names in a large dictionary reads into the caches. A million names lie anywhere in 150 MB:
 * a look-up waits for memory four times, for a place in the index, the entry, its key and its value. Here the misses of
 * NAMES names do not wait for each other. It reads CPython's own form of a dictionary, and only to prefetch. */
static void
prefetch_each(PyObject *numbers, PyObject **names, int n)
{
#ifdef KNOWS_DICTIONARIES
    PyDictKeysObject *keys = ((PyDictObject *)numbers)->ma_keys;
    if (keys->dk_kind != DICT_KEYS_UNICODE || keys->dk_log2_index_bytes != keys->dk_log2_size + 2)
        return; /* only a large one has an index of int32 */
    const int32_t *index = (const int32_t *)keys->dk_indices;
    const PyDictUnicodeEntry *entries = (const PyDictUnicodeEntry *)(index + ((size_t)1 << keys->dk_log2_size));
    size_t slot[NAMES], last = ((size_t)1 << keys->dk_log2_size) - 1;
    for (int i = 0; i < n; i++)
        __builtin_prefetch(index + (slot[i] = (size_t)PyObject_Hash(names[i]) & last));
    for (int i = 0; i < n; i++)
        if (index[slot[i]] >= 0)
            __builtin_prefetch(entries + index[slot[i]]);
    for (int i = 0; i < n; i++)
        if (index[slot[i]] >= 0) {
            __builtin_prefetch(entries[index[slot[i]]].me_key);
            __builtin_prefetch(entries[index[slot[i]]].me_value);
        }
#endif
}

static PyObject *
find_each(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    if (count != 2 || !PyDict_CheckExact(arguments[0]) || !PyList_CheckExact(arguments[1]))
        return fall_back(FIND_EACH, arguments, count);
    PyObject *numbers = arguments[0], *names = arguments[1];
    npy_intp k = PyList_GET_SIZE(names);
    for (npy_intp i = 0; i < k; i++)
        if (!PyUnicode_CheckExact(PyList_GET_ITEM(names, i)))
            return fall_back(FIND_EACH, arguments, count);
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(1, &k, NPY_INT64);
    if (!out)
        return NULL;
    npy_int64 *found = PyArray_DATA(out);
    for (npy_intp i = 0; i < k; i++) {
        if (i % NAMES == 0)
            prefetch_each(numbers, &PyList_GET_ITEM(names, i), k - i < NAMES ? (int)(k - i) : NAMES);
        PyObject *number = PyDict_GetItemWithError(numbers, PyList_GET_ITEM(names, i));
        int overflow = 0;
        if (number && (!PyLong_CheckExact(number)
                       || (found[i] = PyLong_AsLongLongAndOverflow(number, &overflow), overflow))) {
            Py_DECREF(out);
            return fall_back(FIND_EACH, arguments, count);
        }
        if (!number)
            found[i] = ABSENT;
        if (PyErr_Occurred()) {
            Py_DECREF(out);
            return NULL;
        }
    }
    return (PyObject *)out;
}

/* ------------------------------------------------------------------ rows by time and name */

#define TOGETHER 16
/* Tells whether row `row` of a column of names, int64 or objects, has a value; -1 with an error. */
static int
has_name(PyArrayObject *names, npy_intp row, PyObject *value)
{
    if (PyArray_TYPE(names) == NPY_OBJECT)
        return PyObject_RichCompareBool(*(PyObject **)PyArray_GETPTR1(names, row), value, Py_EQ);
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && number == *(npy_int64 *)PyArray_GETPTR1(names, row);
}

/* Tells whether a row is among those that are gone: a list of ints, or None; -1 with an error. */
static int
is_gone(PyObject *gone, npy_intp row)
{
    if (gone == Py_None)
        return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(gone); i++) {
        Py_ssize_t each = PyLong_AsSsize_t(PyList_GET_ITEM(gone, i));
        if (each == -1 && PyErr_Occurred())
            return -1;
        if (each == row)
            return 1;
    }
    return 0;
}

/* Finds rows in `TOGETHER` blocks at once, one step of each search after the other: the rows are in no cache as a rule,
 * and so the misses do not wait for each other. */
static PyObject *
find_named(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    if (count != 8 || !PyList_CheckExact(arguments[0]) || !PyList_CheckExact(arguments[1])
        || !PyList_CheckExact(arguments[2]) || !PyList_CheckExact(arguments[3]) || !PyLong_CheckExact(arguments[4])
        || !PyList_CheckExact(arguments[7]))
        return fall_back(FIND_NAMED, arguments, count);
    PyObject *times = arguments[0], *names = arguments[1], *stops = arguments[2], *gone = arguments[3];
    PyObject *values = arguments[7];
    npy_intp skip = PyLong_AsSsize_t(arguments[4]);
    PyArrayObject *blocks = column_of(arguments[5], NPY_INT64), *wanted = column_of(arguments[6], NPY_INT64);
    npy_intp m = PyList_GET_SIZE(values), k = PyList_GET_SIZE(times);
    if (!blocks || !wanted || !is_contiguous(blocks) || !is_contiguous(wanted) || PyArray_DIM(blocks, 0) != m
        || PyArray_DIM(wanted, 0) != m || PyList_GET_SIZE(names) != k || PyList_GET_SIZE(stops) != k
        || PyList_GET_SIZE(gone) != k || skip < 0)
        return fall_back(FIND_NAMED, arguments, count);
    const npy_int64 *block_of = PyArray_DATA(blocks), *time = PyArray_DATA(wanted);
    for (npy_intp i = 0; i < m; i++) { /* before anything is compared: a comparison of objects may run Python code */
        if (block_of[i] < 0 || block_of[i] >= k)
            return fall_back(FIND_NAMED, arguments, count);
        if (i && block_of[i] == block_of[i - 1] && PyLong_CheckExact(PyList_GET_ITEM(values, i)))
            continue; /* the block is known, and the value fits any column */
        PyArrayObject *held = column_of(PyList_GET_ITEM(times, block_of[i]), NPY_INT64);
        PyArrayObject *named = column_of(PyList_GET_ITEM(names, block_of[i]), NPY_INT64);
        if (named && !PyLong_CheckExact(PyList_GET_ITEM(values, i)))
            named = NULL;
        else if (!named)
            named = column_of(PyList_GET_ITEM(names, block_of[i]), NPY_OBJECT);
        PyObject *rows = PyList_GET_ITEM(stops, block_of[i]), *lost = PyList_GET_ITEM(gone, block_of[i]);
        npy_intp stop = PyLong_CheckExact(rows) ? PyLong_AsSsize_t(rows) : -1;
        if (!held || !named || !is_contiguous(held) || stop < (block_of[i] ? 0 : skip) || stop > PyArray_DIM(held, 0)
            || stop > PyArray_DIM(named, 0) || (lost != Py_None && !PyList_CheckExact(lost)))
            return fall_back(FIND_NAMED, arguments, count);
    }
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(1, &m, NPY_INT64);
    if (!out)
        return NULL;
    npy_int64 *row = PyArray_DATA(out);
    for (npy_intp start = 0; start < m; start += TOGETHER) {
        int n = m - start < TOGETHER ? (int)(m - start) : TOGETHER, more = 1;
        const npy_int64 *held[TOGETHER], *at[TOGETHER];
        npy_intp left[TOGETHER], stop[TOGETHER];
        for (int j = 0; j < n; j++) {
            npy_int64 block = block_of[start + j];
            held[j] = PyArray_DATA((PyArrayObject *)PyList_GET_ITEM(times, block));
            stop[j] = PyLong_AsSsize_t(PyList_GET_ITEM(stops, block));
            at[j] = held[j] + (block ? 0 : skip);
            left[j] = stop[j] - (block ? 0 : skip);
        }
        while (more) {
            more = 0;
            for (int j = 0; j < n; j++)
                if (left[j] > 1) {
                    npy_intp half = left[j] / 2;
                    at[j] += at[j][half - 1] < time[start + j] ? half : 0;
                    left[j] -= half;
                    more |= left[j] > 1;
                    __builtin_prefetch(at[j] + left[j] / 2 - (left[j] > 1));
                }
        }
        for (int j = 0; j < n; j++) {
            npy_intp i = start + j, found = at[j] - held[j];
            if (left[j] && *at[j] < time[i])
                found++;
            if ((i && time[i] == time[i - 1]) || (i + 1 < m && time[i] == time[i + 1]))
                row[i] = UNCLEAR;
            else if (found == stop[j] || held[j][found] != time[i])
                row[i] = ABSENT;
            else if (found + 1 == stop[j] || held[j][found + 1] == time[i])
                row[i] = UNCLEAR;
            else {
                row[i] = found;
                __builtin_prefetch(PyArray_GETPTR1((PyArrayObject *)PyList_GET_ITEM(names, block_of[i]), found));
            }
        }
        for (npy_intp i = start; i < start + n; i++)
            if (row[i] >= 0) {
                PyArrayObject *named = (PyArrayObject *)PyList_GET_ITEM(names, block_of[i]);
                int same = has_name(named, row[i], PyList_GET_ITEM(values, i));
                int lost = same > 0 ? is_gone(PyList_GET_ITEM(gone, block_of[i]), row[i]) : 0;
                if (same < 0 || lost < 0) {
                    Py_DECREF(out);
                    return NULL;
                }
                if (!same || lost)
                    row[i] = ABSENT;
            }
    }
    return (PyObject *)out;
}

/* ------------------------------------------------------------------ folds */

static PyObject *
total(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp n;
    const double *numbers = count == 3 ? numbers_of(arguments, &n) : NULL;
    return numbers ? PyFloat_FromDouble(dot(numbers, ones, n)) : fall_back(TOTAL, arguments, count);
}

static PyObject *
moments(npy_intp n, double mean, double m2)
{
    PyObject *parts[3] = {PyLong_FromSsize_t(n), PyFloat_FromDouble(mean), PyFloat_FromDouble(m2)};
    PyObject *out = parts[0] && parts[1] && parts[2] ? PyTuple_New(3) : NULL;
    for (int i = 0; i < 3; i++)
        if (out)
            PyTuple_SET_ITEM(out, i, parts[i]);
        else
            Py_XDECREF(parts[i]);
    return out;
}

static PyObject *
powers(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp n;
    const double *numbers = count == 4 ? numbers_of(arguments, &n) : NULL;
    if (!numbers || !n || !PyLong_CheckExact(arguments[3]) || PyLong_AsLong(arguments[3]) != 2)
        return fall_back(POWERS, arguments, count);
    double mean = dot(numbers, ones, n) / (double)n;
    if (!(-HUGE_MEAN < mean && mean < HUGE_MEAN))
        return fall_back(POWERS, arguments, count);
    double deviations[SHORT];
    for (npy_intp i = 0; i < n; i++)
        deviations[i] = numbers[i] - mean;
    double m2 = dot(deviations, deviations, n), close = mean * CLOSE;
    if (m2 <= (double)n * close * close) {
        double rest = dot(deviations, ones, n) / (double)n;
        mean += rest;
        for (npy_intp i = 0; i < n; i++)
            deviations[i] -= rest;
        m2 = dot(deviations, deviations, n);
    }
    return moments(n, mean, m2);
}

/* Reads (n, mean, m2): an int that float64 holds exactly, and two floats; returns whether it is that. */
static int
powers_of(PyObject *given, double *n, double *mean, double *m2)
{
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != 3)
        return 0;
    PyObject *rows = PyTuple_GET_ITEM(given, 0), *first = PyTuple_GET_ITEM(given, 1), *second = PyTuple_GET_ITEM(given, 2);
    if (!PyLong_CheckExact(rows) || !PyFloat_CheckExact(first) || !PyFloat_CheckExact(second))
        return 0;
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(rows, &overflow);
    *n = (double)number;
    *mean = PyFloat_AS_DOUBLE(first);
    *m2 = PyFloat_AS_DOUBLE(second);
    return !overflow && number > 0 && number < 1LL << 52;
}

static PyObject *
join_powers(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    double n1, mean1, m2_1, n2, mean2, m2_2;
    if (count != 2 || !powers_of(arguments[0], &n1, &mean1, &m2_1) || !powers_of(arguments[1], &n2, &mean2, &m2_2))
        return fall_back(JOIN_POWERS, arguments, count);
    double n = n1 + n2, share = n2 / n, apart = mean2 - mean1;
    double mean = mean1 + apart * share, m2 = m2_1 + m2_2 + apart * apart * (n1 * share);
    return moments((npy_intp)n, mean, m2);
}

static PyObject *
extreme(int function, Arguments arguments, Py_ssize_t count)
{
    npy_intp start, stop, at;
    PyArrayObject *column = count == 3 ? column_of(arguments[0], NPY_DOUBLE) : NULL;
    if (count == 3 && !column)
        column = column_of(arguments[0], NPY_INT64);
    if (!column || !is_contiguous(column) || !rows_of(arguments[1], arguments[2], PyArray_DIM(column, 0), &start, &stop))
        return fall_back(function, arguments, count);
    if (start == stop)
        Py_RETURN_NONE;
    PyArray_ArrFuncs *of_type = PyDataType_GetArrFuncs(PyArray_DESCR(column));
    char *rows = PyArray_BYTES(column) + start * 8;
    if ((function == LARGEST ? of_type->argmax : of_type->argmin)(rows, stop - start, &at, column) < 0)
        return NULL;
    return PyArray_GETITEM(column, rows + at * 8);
}

static PyObject *
largest(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    return extreme(LARGEST, arguments, count);
}

static PyObject *
smallest(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    return extreme(SMALLEST, arguments, count);
}

/* ------------------------------------------------------------------ many ranges of rows */

/* Reads int64 (k,) that lie side by side; NULL where it is something else, or of another length than a k >= 0. */
static const npy_int64 *
integers_of(PyObject *given, npy_intp *k)
{
    PyArrayObject *column = column_of(given, NPY_INT64);
    if (!column || !is_contiguous(column) || (*k >= 0 && PyArray_DIM(column, 0) != *k))
        return NULL;
    *k = PyArray_DIM(column, 0);
    return PyArray_DATA(column);
}

/* Tells whether all of k ranges are rows of n, and none has fewer than `least` or more than `most` rows. */
static int
are_ranges(const npy_int64 *start, const npy_int64 *stop, npy_intp k, npy_intp n, npy_intp least, npy_intp most)
{
    int fits = 1;
    for (npy_intp i = 0; i < k; i++)
        fits &= start[i] >= 0 && start[i] <= stop[i] && stop[i] <= n && stop[i] - start[i] >= least
                && stop[i] - start[i] <= most;
    return fits;
}

static PyObject *
totals(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp k = -1;
    PyArrayObject *column = count == 3 ? column_of(arguments[0], NPY_DOUBLE) : NULL;
    const npy_int64 *start = column ? integers_of(arguments[1], &k) : NULL;
    const npy_int64 *stop = start ? integers_of(arguments[2], &k) : NULL;
    if (!stop || !is_contiguous(column) || !are_ranges(start, stop, k, PyArray_DIM(column, 0), 0, SHORT))
        return fall_back(TOTALS, arguments, count);
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(1, &k, NPY_DOUBLE);
    if (!out)
        return NULL;
    const double *numbers = PyArray_DATA(column);
    double *sum = PyArray_DATA(out);
    for (npy_intp i = 0; i < k; i++)
        sum[i] = dot(numbers + start[i], ones, stop[i] - start[i]);
    return (PyObject *)out;
}

static PyObject *
extremes(int function, Arguments arguments, Py_ssize_t count)
{
    npy_intp k = -1, at;
    int type = NPY_DOUBLE;
    PyArrayObject *column = count == 3 ? column_of(arguments[0], type) : NULL;
    if (count == 3 && !column)
        column = column_of(arguments[0], type = NPY_INT64);
    const npy_int64 *start = column ? integers_of(arguments[1], &k) : NULL;
    const npy_int64 *stop = start ? integers_of(arguments[2], &k) : NULL;
    if (!stop || !is_contiguous(column) || !are_ranges(start, stop, k, PyArray_DIM(column, 0), 1, NPY_MAX_INTP))
        return fall_back(function, arguments, count);
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(1, &k, type);
    if (!out)
        return NULL;
    PyArray_ArrFuncs *of_type = PyDataType_GetArrFuncs(PyArray_DESCR(column));
    PyArray_ArgFunc *extreme_of = function == LARGESTS ? of_type->argmax : of_type->argmin;
    for (npy_intp i = 0; i < k; i++) {
        char *rows = PyArray_BYTES(column) + start[i] * 8;
        if (extreme_of(rows, stop[i] - start[i], &at, column) < 0) {
            Py_DECREF(out);
            return NULL;
        }
        memcpy(PyArray_BYTES(out) + i * 8, rows + at * 8, 8);
    }
    return (PyObject *)out;
}

static PyObject *
largests(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    return extremes(LARGESTS, arguments, count);
}

static PyObject *
smallests(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    return extremes(SMALLESTS, arguments, count);
}

/* Tells whether k ranges are each of one of the columns of a list, all of which have the type and lie side by side. */
static int
are_ranges_of(PyObject *columns, int type, const npy_int64 *of, const npy_int64 *start, const npy_int64 *stop, npy_intp k)
{
    npy_intp n = PyList_GET_SIZE(columns), known = -1, length = 0;
    for (npy_intp i = 0; i < k; i++) {
        if (of[i] < 0 || of[i] >= n)
            return 0;
        if (of[i] != known) {
            PyArrayObject *column = column_of(PyList_GET_ITEM(columns, of[i]), type);
            if (!column || !is_contiguous(column))
                return 0;
            known = of[i];
            length = PyArray_DIM(column, 0);
        }
        if (start[i] < 0 || start[i] > stop[i] || stop[i] > length)
            return 0;
    }
    return 1;
}

/* Searches `TOGETHER` ranges at once, as find_named does. A range that is asked the same as the one before is not searched
 * again: the lookbacks of a pair have one end. */
static PyObject *
rows_at(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp k = -1;
    if (count != 5 || !PyList_CheckExact(arguments[0]))
        return fall_back(ROWS_AT, arguments, count);
    const npy_int64 *given[4];
    for (int i = 0; i < 4; i++)
        if (!(given[i] = integers_of(arguments[i + 1], &k)))
            return fall_back(ROWS_AT, arguments, count);
    const npy_int64 *of = given[0], *first = given[1], *stop = given[2], *wanted = given[3];
    PyObject *columns = arguments[0];
    if (!are_ranges_of(columns, NPY_INT64, of, first, stop, k))
        return fall_back(ROWS_AT, arguments, count);
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(1, &k, NPY_INT64);
    if (!out)
        return NULL;
    npy_int64 *row = PyArray_DATA(out);
    for (npy_intp i = 0; i < k;) {
        const npy_int64 *at[TOGETHER], *held[TOGETHER];
        npy_intp left[TOGETHER], which[TOGETHER], begun = i;
        int n = 0, more = 1;
        for (; i < k && n < TOGETHER; i++) {
            if (i > begun && of[i] == of[i - 1] && wanted[i] == wanted[i - 1] && first[i] == first[i - 1]
                && stop[i] == stop[i - 1]) {
                row[i] = -1;
                continue;
            }
            held[n] = PyArray_DATA((PyArrayObject *)PyList_GET_ITEM(columns, of[i]));
            at[n] = held[n] + first[i];
            left[n] = stop[i] - first[i];
            which[n++] = i;
        }
        while (more) {
            more = 0;
            for (int j = 0; j < n; j++)
                if (left[j] > 1) {
                    npy_intp half = left[j] / 2;
                    at[j] += at[j][half - 1] < wanted[which[j]] ? half : 0;
                    left[j] -= half;
                    more |= left[j] > 1;
                    __builtin_prefetch(at[j] + left[j] / 2 - (left[j] > 1));
                }
        }
        for (int j = 0; j < n; j++)
            row[which[j]] = at[j] - held[j] + (left[j] && *at[j] < wanted[which[j]]);
        for (npy_intp each = begun; each < i; each++)
            if (row[each] < 0)
                row[each] = row[each - 1];
    }
    return (PyObject *)out;
}

static PyObject *
gather(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp k = -1, rows = 0;
    if (count != 4 || !PyList_CheckExact(arguments[0]) || !PyList_GET_SIZE(arguments[0]))
        return fall_back(GATHER, arguments, count);
    int type = NPY_DOUBLE;
    if (!column_of(PyList_GET_ITEM(arguments[0], 0), type))
        type = NPY_INT64;
    const npy_int64 *of = integers_of(arguments[1], &k), *start = of ? integers_of(arguments[2], &k) : NULL;
    const npy_int64 *stop = start ? integers_of(arguments[3], &k) : NULL;
    if (!stop || !are_ranges_of(arguments[0], type, of, start, stop, k))
        return fall_back(GATHER, arguments, count);
    for (npy_intp i = 0; i < k; i++)
        rows += stop[i] - start[i];
    PyArrayObject *out = k ? (PyArrayObject *)PyArray_SimpleNew(1, &rows, type) : NULL;
    if (!out)
        return k ? NULL : fall_back(GATHER, arguments, count); /* the first column may be of any type */
    char *to = PyArray_BYTES(out);
    for (npy_intp i = 0; i < k; i++) {
        npy_intp size = (stop[i] - start[i]) * 8;
        memcpy(to, PyArray_BYTES((PyArrayObject *)PyList_GET_ITEM(arguments[0], of[i])) + start[i] * 8, size);
        to += size;
    }
    return (PyObject *)out;
}

static PyObject *
known_rows(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp n = -1, k = -1, rows = 0;
    const npy_int64 *since = count == 5 ? integers_of(arguments[0], &n) : NULL;
    const npy_int64 *until = since ? integers_of(arguments[1], &n) : NULL;
    const npy_int64 *start = until ? integers_of(arguments[2], &k) : NULL;
    const npy_int64 *stop = start ? integers_of(arguments[3], &k) : NULL;
    const npy_int64 *known = stop ? integers_of(arguments[4], &k) : NULL;
    if (!known || !are_ranges(start, stop, k, n, 0, NPY_MAX_INTP))
        return fall_back(KNOWN_ROWS, arguments, count);
    PyArrayObject *counts = (PyArrayObject *)PyArray_SimpleNew(1, &k, NPY_INT64);
    if (!counts)
        return NULL;
    npy_int64 *there = PyArray_DATA(counts);
    for (npy_intp i = 0; i < k; i++) {
        npy_int64 found = 0;
        for (npy_int64 row = start[i]; row < stop[i]; row++)
            found += (since[row] <= known[i]) & (until[row] > known[i]);
        rows += there[i] = found;
    }
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(1, &rows, NPY_INT64);
    if (!out) {
        Py_DECREF(counts);
        return NULL;
    }
    npy_int64 *to = PyArray_DATA(out);
    for (npy_intp i = 0; i < k; i++)
        for (npy_int64 row = start[i], left = there[i]; left; row++)
            if ((since[row] <= known[i]) & (until[row] > known[i])) {
                *to++ = row;
                left--;
            }
    return Py_BuildValue("NN", out, counts);
}

/* ------------------------------------------------------------------ distinct values */

static npy_uint64
mixed(npy_uint64 bits)
{
    bits = (bits ^ (bits >> 33)) * 0xFF51AFD7ED558CCDULL;
    bits = (bits ^ (bits >> 33)) * 0xC4CEB9FE1A85EC53ULL;
    return bits ^ (bits >> 33);
}

static PyObject *
coupons(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    PyArrayObject *column = count == 1 ? column_of(arguments[0], NPY_UINT64) : NULL;
    if (!column || !is_contiguous(column))
        return fall_back(COUPONS, arguments, count);
    npy_intp n = PyArray_DIM(column, 0);
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(1, &n, NPY_INT64);
    if (!out)
        return NULL;
    const npy_uint64 *bits = PyArray_DATA(column), seed = 9001;
    npy_int64 *coupon = PyArray_DATA(out);
    for (npy_intp i = 0; i < n; i++) {
        npy_uint64 h1 = bits[i] * 0x87C37B91114253D5ULL;
        h1 = (((h1 << 31) | (h1 >> 33)) * 0x4CF5AD432745937FULL) ^ seed ^ 8;
        npy_uint64 h2 = h1 + (seed ^ 8);
        h1 = mixed(h2);
        h2 = mixed(h2 + (seed ^ 8));
        h1 += h2;
        h2 += h1;
        int zeros = h2 ? __builtin_clzll(h2) : 64;
        coupon[i] = (npy_int64)(h1 & 0x3FFFFFF) | (npy_int64)((zeros < 62 ? zeros : 62) + 1) << 26;
    }
    return (PyObject *)out;
}

static PyObject *
last_before(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp n = -1, size = 16;
    const npy_int64 *code = count == 1 ? integers_of(arguments[0], &n) : NULL;
    if (!code || n > 1 << 28)
        return fall_back(LAST_BEFORE, arguments, count);
    while (size < 2 * n)
        size *= 2;
    npy_int32 *last = malloc(size * sizeof(npy_int32)); /* a hash table of rows: the last of each code so far */
    if (!last)
        return PyErr_NoMemory();
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(1, &n, NPY_INT64);
    if (!out) {
        free(last);
        return NULL;
    }
    memset(last, -1, size * sizeof(npy_int32));
    npy_int64 *before = PyArray_DATA(out);
    for (npy_intp i = 0; i < n; i++) {
        npy_uint64 slot = mixed((npy_uint64)code[i]) & (npy_uint64)(size - 1);
        while (last[slot] >= 0 && code[last[slot]] != code[i])
            slot = (slot + 1) & (npy_uint64)(size - 1);
        before[i] = last[slot];
        last[slot] = (npy_int32)i;
    }
    free(last);
    return (PyObject *)out;
}

static PyObject *
count_new(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp n = -1, k = -1;
    const npy_int64 *before = count == 3 ? integers_of(arguments[0], &n) : NULL;
    const npy_int64 *start = before ? integers_of(arguments[1], &k) : NULL;
    const npy_int64 *stop = start ? integers_of(arguments[2], &k) : NULL;
    if (!stop || !are_ranges(start, stop, k, n, 1, NPY_MAX_INTP))
        return fall_back(COUNT_NEW, arguments, count);
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(1, &k, NPY_INT64);
    if (!out)
        return NULL;
    npy_int64 *found = PyArray_DATA(out);
    for (npy_intp i = 0; i < k; i++) {
        npy_int64 new = 0;
        for (npy_int64 row = start[i]; row < stop[i]; row++)
            new += before[row] < start[i];
        found[i] = new;
    }
    return (PyObject *)out;
}

/* The distinct coupons of a range, in a hash table with how many rows have each: those of no row leave it as it grows. Of each
 * register how many of them have each value, and a bit for each value that is there; and how many registers have a value. */
#define AHEAD 12
struct coupon {
    npy_uint32 name, rows;
};
struct sketch { /* of the rows first <= row < stop among n */
    struct coupon *table;
    npy_uint32 *of_value;
    npy_uint64 *values;
    npy_int64 size, used, registers, distinct, having[64], first, stop, n;
};
#define HELD "sash_engine.sketch"
#define RANGE 32 /* an answer is as much work as so many rows that come or leave */

static struct coupon *
place_of(struct coupon *table, npy_int64 size, npy_uint32 name)
{
    npy_uint64 at = mixed(name) & (npy_uint64)(size - 1);
    while (table[at].name && table[at].name != name)
        at = (at + 1) & (npy_uint64)(size - 1);
    return table + at;
}

static int
grow(struct sketch *held)
{
    npy_int64 size = held->size ? 4 * held->size : 4096;
    struct coupon *table = calloc(size, sizeof(struct coupon));
    if (!table)
        return 0;
    held->used = 0;
    for (npy_int64 i = 0; i < held->size; i++)
        if (held->table[i].rows) {
            *place_of(table, size, held->table[i].name) = held->table[i];
            held->used++;
        }
    free(held->table);
    held->table = table;
    held->size = size;
    return 1;
}

static int
top_of(npy_uint64 values)
{
    return values ? 63 - __builtin_clzll(values) : 0;
}

/* Takes a row in (by 1) or out (by -1), and fetches what a later row needs; returns 0 where there is no memory. */
static int
change(struct sketch *held, npy_int64 noted, int by, npy_int64 later)
{
    if (held->size)
        __builtin_prefetch(held->table + (mixed((npy_uint32)later) & (npy_uint64)(held->size - 1)));
    __builtin_prefetch(held->of_value + (later & (held->registers - 1)) * 64 + (later >> 26));
    if (2 * held->used >= held->size && !grow(held))
        return 0;
    struct coupon *coupon = place_of(held->table, held->size, (npy_uint32)noted);
    held->used += !coupon->name;
    coupon->name = (npy_uint32)noted;
    coupon->rows += by;
    if (coupon->rows != (by > 0))
        return 1;
    npy_int64 number = noted & (held->registers - 1), value = noted >> 26;
    npy_uint64 *values = held->values + number;
    int before = top_of(*values);
    held->distinct += by;
    held->of_value[number * 64 + value] += by;
    if (held->of_value[number * 64 + value] == (by > 0))
        *values ^= 1ULL << value;
    held->having[before]--;
    held->having[top_of(*values)]++;
    return 1;
}

static void
forget(PyObject *capsule)
{
    struct sketch *held = PyCapsule_GetPointer(capsule, HELD);
    free(held->table);
    free(held->of_value);
    free(held->values);
    free(held);
}

/* Returns a sketch of no rows in a capsule, which owns it; NULL where there is no memory. */
static PyObject *
no_rows(npy_int64 registers, npy_int64 n)
{
    struct sketch *held = calloc(1, sizeof(struct sketch));
    PyObject *capsule = held ? PyCapsule_New(held, HELD, forget) : PyErr_NoMemory();
    if (!capsule) {
        free(held);
        return NULL;
    }
    held->of_value = calloc(registers * 64, sizeof(npy_uint32));
    held->values = calloc(registers, sizeof(npy_uint64));
    held->registers = held->having[0] = registers;
    held->n = n;
    if (held->of_value && held->values)
        return capsule;
    Py_DECREF(capsule);
    return PyErr_NoMemory();
}

/* Goes on to a range, while there is work left to do; returns 0 where there is no memory. */
static int
slide(struct sketch *held, const npy_int64 *noted, npy_int64 start, npy_int64 stop, npy_int64 *left)
{
    npy_int64 a = held->first, b = held->stop, n = held->n;
    int made = 1;
    for (; made && *left > 0 && a < b && a < start; a++, --*left)
        made = change(held, noted[a], -1, noted[a + AHEAD < n ? a + AHEAD : a]);
    for (; made && *left > 0 && a < b && b > stop; b--, --*left)
        made = change(held, noted[b - 1], -1, noted[b - 1]);
    if (a == b)
        a = b = start;
    for (; made && *left > 0 && a > start; a--, --*left)
        made = change(held, noted[a - 1], 1, noted[a - 1]);
    for (; made && *left > 0 && b < stop; b++, --*left)
        made = change(held, noted[b], 1, noted[b + AHEAD < n ? b + AHEAD : b]);
    held->first = a;
    held->stop = b;
    return made;
}

static PyObject *
slide_registers(PyObject *Py_UNUSED(module), Arguments arguments, Py_ssize_t count)
{
    npy_intp n = -1, k = -1, done = 0;
    const npy_int64 *noted = count == 6 ? integers_of(arguments[0], &n) : NULL;
    const npy_int64 *start = noted ? integers_of(arguments[1], &k) : NULL;
    const npy_int64 *stop = start ? integers_of(arguments[2], &k) : NULL;
    long lg_k = stop && PyLong_CheckExact(arguments[3]) ? PyLong_AsLong(arguments[3]) : 0;
    long left = lg_k && PyLong_CheckExact(arguments[5]) ? PyLong_AsLong(arguments[5]) : 0;
    PyObject *capsule = count == 6 ? arguments[4] : NULL;
    int fits = left > 0 && lg_k >= 4 && lg_k <= 21 && are_ranges(start, stop, k, n, 1, NPY_MAX_INTP), begun = 0;
    if (fits && PyCapsule_CheckExact(capsule)) { /* of the same rows: they were looked at when it was made */
        begun = PyCapsule_IsValid(capsule, HELD);
        fits = begun && ((struct sketch *)PyCapsule_GetPointer(capsule, HELD))->n == n;
    } else {
        fits = fits && capsule == Py_None;
        for (npy_intp i = 0; fits && i < n; i++)
            fits = noted[i] >> 26 >= 1 && noted[i] >> 26 < 64;
    }
    if (!fits)
        return fall_back(SLIDE_REGISTERS, arguments, count);
    if (begun)
        Py_INCREF(capsule);
    else if (!(capsule = no_rows(1L << lg_k, n)))
        return NULL;
    struct sketch *held = PyCapsule_GetPointer(capsule, HELD);
    npy_intp most = k < left / RANGE + 1 ? k : left / RANGE + 1;
    npy_int64 *counts = malloc((most + 1) * 2 * sizeof(npy_int64)), rows = left;
    double *sums = malloc((most + 1) * 2 * sizeof(double));
    int made = counts && sums;
    for (; made && done < most && rows > 0; rows -= RANGE) {
        made = slide(held, noted, start[done], stop[done], &rows);
        if (held->first != start[done] || held->stop != stop[done])
            break;
        double low = 0, high = 0;
        for (int value = 0; value < 32; value++)
            low += (double)held->having[value] / (double)(1ULL << value);
        for (int value = 32; value < 64; value++)
            high += (double)held->having[value] / (double)(1ULL << value);
        counts[done] = held->distinct;
        counts[most + done] = held->having[0];
        sums[done] = low;
        sums[most + done++] = high;
    }
    PyObject *found[4] = {PyArray_SimpleNew(1, &done, NPY_INT64), PyArray_SimpleNew(1, &done, NPY_INT64),
                          PyArray_SimpleNew(1, &done, NPY_DOUBLE), PyArray_SimpleNew(1, &done, NPY_DOUBLE)};
    for (int i = 0; i < 4 && made; i++)
        if ((made = found[i] != NULL))
            memcpy(PyArray_DATA((PyArrayObject *)found[i]),
                   i < 2 ? (void *)(counts + i * most) : (void *)(sums + (i - 2) * most), done * 8);
    free(counts);
    free(sums);
    if (made)
        return Py_BuildValue("NNNNN", found[0], found[1], found[2], found[3], capsule);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(found[i]);
    Py_DECREF(capsule);
    return PyErr_NoMemory();
}

/* ------------------------------------------------------------------ the module */

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef functions[FUNCTIONS + 1] = { /* in the order of their numbers */
    FUNCTION(append_row), FUNCTION(copy_rows), FUNCTION(count_new), FUNCTION(coupons), FUNCTION(find_each),
    FUNCTION(find_named), FUNCTION(first_after), FUNCTION(first_from), FUNCTION(gather), FUNCTION(is_sorted), FUNCTION(join_powers),
    FUNCTION(known_rows), FUNCTION(largest), FUNCTION(largests), FUNCTION(last_before), FUNCTION(merge), FUNCTION(powers),
    FUNCTION(rows_at), FUNCTION(slide_registers),
    FUNCTION(smallest), FUNCTION(smallests), FUNCTION(total), FUNCTION(totals),
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", "See kernels.py.", -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit__kernels(void)
{
    import_array();
    PyObject *kernels = PyImport_ImportModule("sash_engine.kernels"); /* which is importing this module, at its end */
    if (!kernels)
        return NULL;
    for (int i = 0; i < FUNCTIONS; i++) {
        plain[i] = PyObject_GetAttrString(kernels, functions[i].ml_name);
        if (!plain[i])
            return NULL;
    }
    Py_DECREF(kernels);
    for (int i = 0; i < SHORT; i++)
        ones[i] = 1.0;
    PyArray_Descr *float64 = PyArray_DescrFromType(NPY_DOUBLE);
    dot_float64 = PyDataType_GetArrFuncs(float64)->dotfunc;
    Py_DECREF(float64);
    return PyModule_Create(&definition);
}
