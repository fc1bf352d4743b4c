"""When to stop in the middle of a run: a clock, and Ctrl-C in any thread.

Python handles SIGINT in its main thread only, between two bytecodes. So during a run, a signal handler counts SIGINT
and then calls the previous handler, usually Python's: the main thread still gets its KeyboardInterrupt, and a run in
any thread compares the count between two steps.
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
    static volatile sig_atomic_t dpdl_guards = 0;   /* while positive, the previous handler is not called, */
    static volatile pid_t dpdl_guarded = 0;         /* in this process; not in a child that is forked meanwhile */
    static struct sigaction dpdl_previous;
    static int dpdl_installed = 0;  /* dpdl_watch has installed our handler, and dpdl_unwatch has not removed it */
    static void dpdl_count(int number, siginfo_t *info, void *context) {
        dpdl_interrupts = (sig_atomic_t)((unsigned)dpdl_interrupts + 1u);
        if (dpdl_guards > 0 && dpdl_guarded == getpid()) return;
        if (dpdl_previous.sa_flags & SA_SIGINFO) {
            if (dpdl_previous.sa_sigaction) dpdl_previous.sa_sigaction(number, info, context);
        } else if (dpdl_previous.sa_handler != SIG_DFL && dpdl_previous.sa_handler != SIG_IGN) {
            dpdl_previous.sa_handler(number);
        }
    }
    static int dpdl_is_ours(const struct sigaction *a) {
        return (a->sa_flags & SA_SIGINFO) && a->sa_sigaction == dpdl_count;
    }
    static int dpdl_is_previous(const struct sigaction *a) {
        if ((a->sa_flags ^ dpdl_previous.sa_flags) & SA_SIGINFO) return 0;
        return a->sa_flags & SA_SIGINFO ? a->sa_sigaction == dpdl_previous.sa_sigaction
                                        : a->sa_handler == dpdl_previous.sa_handler;
    }
    /* Install our handler, unless SIGINT is ignored or has its default effect: then there is no handler to call next.
       Python replaces our handler by its own whenever signal.signal is called, as asyncio.run does; then ours is
       installed again. Any other handler that replaced ours may call it; if ours called that one, neither would
       return. */
    static void dpdl_watch(void) {
        struct sigaction now, ours;
        if (sigaction(SIGINT, NULL, &now) || dpdl_is_ours(&now)) return;
        if (!(now.sa_flags & SA_SIGINFO) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) return;
        if (dpdl_installed && !dpdl_is_previous(&now)) return;
        dpdl_previous = now;
        ours = now;
        ours.sa_sigaction = dpdl_count;
        ours.sa_flags |= SA_SIGINFO;
        dpdl_installed = sigaction(SIGINT, &ours, NULL) == 0;
    }
    /* Restore the previous handler, unless another one has replaced ours. */
    static void dpdl_unwatch(void) {
        struct sigaction now;
        if (sigaction(SIGINT, NULL, &now)) return;
        if (dpdl_is_ours(&now)) dpdl_installed = sigaction(SIGINT, &dpdl_previous, NULL) != 0;
        else if (dpdl_is_previous(&now)) dpdl_installed = 0;
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

ctypedef struct StopCondition:
    double deadline             # on dpdl_clock; infinite if there is none
    int64_t interrupts          # the count when the run began
    int64_t work                # the value of `work` in the last call of must_stop


cdef enum:
    CHECK_EVERY = 256           # steps between two checks, if no slow step occurs


cdef inline bint must_stop(StopCondition *p, int64_t k, int64_t work) noexcept nogil:
    """Whether to stop after the k-th step of a block; `work` counts the operations that may be slow."""
    if work == p.work and k % CHECK_EVERY != CHECK_EVERY - 1:
        return False
    p.work = work
    return dpdl_interrupt_count() != p.interrupts or dpdl_clock() >= p.deadline
