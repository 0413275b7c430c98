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
#include <string.h>

#define SHORT 4096 /* longer columns are rare, and summed in another way */
#define CLOSE 1e-7
#define HUGE_MEAN 1e290

enum {
    APPEND_ROW, COPY_ROWS, FIND_NAMED, FIRST_AFTER, FIRST_FROM, IS_SORTED, JOIN_POWERS, LARGEST, POWERS, SMALLEST, TOTAL,
    FUNCTIONS
};
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

/* ------------------------------------------------------------------ rows by time and name */

#define TOGETHER 16
enum { ABSENT = -1, UNCLEAR = -2 };

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

/* ------------------------------------------------------------------ the module */

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef functions[FUNCTIONS + 1] = { /* in the order of their numbers */
    FUNCTION(append_row), FUNCTION(copy_rows), FUNCTION(find_named), FUNCTION(first_after), FUNCTION(first_from),
    FUNCTION(is_sorted), FUNCTION(join_powers), FUNCTION(largest), FUNCTION(powers), FUNCTION(smallest), FUNCTION(total),
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
