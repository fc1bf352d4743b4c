"""When to stop in the middle of a run: a clock, and Ctrl-C as seen from any thread.

Python tells its main thread alone about SIGINT, and only between bytecodes. So while any run is under way, a handler
counts the signal and hands it on to the one that was there before, Python's as a rule: the main thread still gets its
KeyboardInterrupt, and a run looks at the count between two steps, wherever it runs.
"""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <time.h>
    #if defined(_WIN32)
    static volatile long dpdl_interrupts = 0;
    static void dpdl_watch(void) { }
    static void dpdl_unwatch(void) { }
    static void dpdl_guard(int more) { (void)more; }
    static inline double dpdl_clock(void) {
        struct timespec t;
        timespec_get(&t, TIME_UTC);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    #else
    #include <signal.h>
    #include <unistd.h>
    static volatile sig_atomic_t dpdl_interrupts = 0;
    static volatile sig_atomic_t dpdl_guards = 0;   /* while positive, the signal is not handed on, */
    static volatile pid_t dpdl_guarded = 0;         /* in this process; a child that is forked meanwhile has its own */
    static struct sigaction dpdl_before;
    static int dpdl_placed = 0;     /* our handler was put there, and has not been taken away by us */
    static void dpdl_count(int number, siginfo_t *info, void *context) {
        dpdl_interrupts = (sig_atomic_t)((unsigned)dpdl_interrupts + 1u);
        if (dpdl_guards > 0 && dpdl_guarded == getpid()) return;
        if (dpdl_before.sa_flags & SA_SIGINFO) {
            if (dpdl_before.sa_sigaction) dpdl_before.sa_sigaction(number, info, context);
        } else if (dpdl_before.sa_handler != SIG_DFL && dpdl_before.sa_handler != SIG_IGN) {
            dpdl_before.sa_handler(number);
        }
    }
    static int dpdl_is_ours(const struct sigaction *a) {
        return (a->sa_flags & SA_SIGINFO) && a->sa_sigaction == dpdl_count;
    }
    static int dpdl_is_the_one_before(const struct sigaction *a) {
        if ((a->sa_flags ^ dpdl_before.sa_flags) & SA_SIGINFO) return 0;
        return a->sa_flags & SA_SIGINFO ? a->sa_sigaction == dpdl_before.sa_sigaction
                                        : a->sa_handler == dpdl_before.sa_handler;
    }
    /* Count SIGINT from now on, unless it is ignored or has its default effect: then nobody is there to hand it on to.
       Python replaces our handler by its own whenever signal.signal is called, as asyncio.run does; then ours goes on
       top again. Any other that replaced ours may hand on to it, and would never stop if ours handed on to that. */
    static void dpdl_watch(void) {
        struct sigaction now, ours;
        if (sigaction(SIGINT, NULL, &now) || dpdl_is_ours(&now)) return;
        if (!(now.sa_flags & SA_SIGINFO) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) return;
        if (dpdl_placed && !dpdl_is_the_one_before(&now)) return;
        dpdl_before = now;
        ours = now;
        ours.sa_sigaction = dpdl_count;
        ours.sa_flags |= SA_SIGINFO;
        dpdl_placed = sigaction(SIGINT, &ours, NULL) == 0;
    }
    /* Put back what was there, unless somebody else has replaced our handler since. */
    static void dpdl_unwatch(void) {
        struct sigaction now;
        if (sigaction(SIGINT, NULL, &now)) return;
        if (dpdl_is_ours(&now)) dpdl_placed = sigaction(SIGINT, &dpdl_before, NULL) != 0;
        else if (dpdl_is_the_one_before(&now)) dpdl_placed = 0;
    }
    static void dpdl_guard(int more) {
        if (dpdl_guarded != getpid()) dpdl_guards = 0;
        dpdl_guarded = getpid();
        if (dpdl_guards + more >= 0) dpdl_guards += more;
    }
    static inline double dpdl_clock(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    #endif
    static inline int64_t dpdl_interrupt_count(void) { return (int64_t)dpdl_interrupts; }
    """
    void dpdl_watch() noexcept nogil
    void dpdl_unwatch() noexcept nogil
    void dpdl_guard(int more) noexcept nogil
    double dpdl_clock() noexcept nogil
    int64_t dpdl_interrupt_count() noexcept nogil

ctypedef struct Patience:
    double deadline             # on dpdl_clock; infinite if there is none
    int64_t interrupts          # the count when the run began
    int64_t work                # what was slow so far, counted


cdef enum:
    GLANCE = 256                # steps between two looks, when all of them are quick


cdef inline bint enough(Patience *p, int64_t k, int64_t work) noexcept nogil:
    """Whether to stop after the k-th step of a block; `work` counts whatever may have been slow."""
    if work == p.work and k % GLANCE != GLANCE - 1:
        return False
    p.work = work
    return dpdl_interrupt_count() != p.interrupts or dpdl_clock() >= p.deadline
