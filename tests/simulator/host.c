/* The host: a workload library of FoundationDB's simulator that hands each stage to Python.
 *
 * The simulator (fdbserver -r simulation, release 7.4 or later) loads this library and calls
 * `workloadCFactory` once for each client. The first call starts one interpreter; each client is a Python
 * object, which `tests.simulator.stages.make` makes. The structures below are those that the interface for
 * external workloads needs, as far as this file uses them: Python reads the others through their addresses.
 *
 * Python's greenlets move pieces of the C stack. The frames of the simulator must stay where they are, so all
 * greenlets run on a stack of their own: `enter` goes there, calls Python, and comes back.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK_BYTES (64L << 20)

typedef struct { void *inner; void *table; } Handle; /* a promise, or the place for metrics */
typedef struct { int api_version; void *inner; void *table; } Context;
typedef struct {
    void (*free)(void *);
    void (*setup)(void *, void *, Handle);
    void (*start)(void *, void *, Handle);
    void (*check)(void *, void *, Handle);
    void (*metrics)(void *, Handle);
    double (*check_timeout)(void *);
} Table;
typedef struct { int api_version; void *inner; Table *table; } Workload;

static PyObject *make, *work;
static ucontext_t outside, inside;

static void fatal(const char *what) {
    if (PyErr_Occurred()) PyErr_Print();
    fprintf(stderr, "fdbqueue: %s failed\n", what);
    fflush(NULL);
    _Exit(70);
}

/* Turns on the stack of the greenlets: each calls `work`, which returns when all of them wait. */
static void turns(void) {
    for (;;) {
        PyObject *result = PyObject_CallNoArgs(work);
        if (!result) fatal("a turn");
        Py_DECREF(result);
        swapcontext(&inside, &outside);
    }
}

/* For Python, which holds the lock of the interpreter. Not from the stack of the greenlets. */
static void enter(void) { swapcontext(&outside, &inside); }

static void make_stack(void) {
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED || getcontext(&inside)) fatal("the stack");
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = STACK_BYTES;
    inside.uc_link = NULL;
    makecontext(&inside, turns, 0);
}

static PyStatus add_path(PyConfig *config, char *path) {
    config->module_search_paths_set = 1;
    PyStatus status = PyStatus_Ok();
    for (char *place, *rest = path; !PyStatus_Exception(status) && (place = strsep(&rest, ":"));) {
        wchar_t *wide = Py_DecodeLocale(place, NULL);
        status = PyWideStringList_Append(&config->module_search_paths, wide);
        PyMem_RawFree(wide);
    }
    return status;
}

/* An interpreter without a choice of its own: fixed hashes, no site, no environment, the path that is given. */
static void begin(void) {
    const char *path = getenv("FDBQUEUE_SIMULATOR_PATH");
    if (!dlopen(LIBPYTHON, RTLD_NOW | RTLD_GLOBAL)) fatal(dlerror()); /* extensions look names up there */
    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    config.use_hash_seed = 1;
    config.hash_seed = 0;
    config.site_import = 0;
    config.write_bytecode = 0;
    config.install_signal_handlers = 0;
    config.pathconfig_warnings = 0;
    char *places = strdup(path ? path : "");
    PyStatus status = add_path(&config, places);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    if (PyStatus_Exception(status)) fatal(status.err_msg ? status.err_msg : "Python");
    PyConfig_Clear(&config);
    free(places);
}

static void prepare(void) {
    make_stack();
    PyObject *stages = PyImport_ImportModule("tests.simulator.stages");
    if (!stages) fatal("the import of tests.simulator.stages");
    PyObject *prepared = PyObject_CallMethod(stages, "prepare", "K", (unsigned long long)(uintptr_t)enter);
    make = PyObject_GetAttrString(stages, "make");
    work = PyObject_GetAttrString(stages, "work");
    if (!prepared || !make || !work) fatal("tests.simulator.stages");
    Py_DECREF(prepared);
    Py_DECREF(stages);
}

static void call(void *client, const char *name, void *database, Handle handle) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result =
        PyObject_CallMethod(client, name, "KKK", (unsigned long long)(uintptr_t)database,
                            (unsigned long long)(uintptr_t)handle.inner, (unsigned long long)(uintptr_t)handle.table);
    if (!result) fatal(name);
    Py_DECREF(result);
    PyGILState_Release(state);
}

static void setup(void *client, void *database, Handle promise) { call(client, "setup", database, promise); }
static void start(void *client, void *database, Handle promise) { call(client, "start", database, promise); }
static void check(void *client, void *database, Handle promise) { call(client, "check", database, promise); }
static void metrics(void *client, Handle place) { call(client, "metrics", NULL, place); }
static double check_timeout(void *client) { (void)client; return 1e4; }
static void forget(void *client) { (void)client; } /* the process ends soon */

__attribute__((visibility("default"))) Workload workloadCFactory(const char *name, Context given) {
    static Table table = {forget, setup, start, check, metrics, check_timeout};
    bool first = !Py_IsInitialized();
    if (first) begin();
    PyGILState_STATE state = PyGILState_Ensure();
    if (!make) prepare();
    Context *context = malloc(sizeof *context); /* Python keeps its address */
    *context = given;
    PyObject *client = PyObject_CallFunction(make, "sK", name, (unsigned long long)(uintptr_t)context);
    if (!client) fatal("making a client");
    PyGILState_Release(state);
    if (first) PyEval_SaveThread();
    return (Workload){1, client, &table};
}
