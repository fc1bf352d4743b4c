"""What a run reads and never changes: the packed log and the constants of the step.

Rewards and utilities are affine in the stored columns v, so that one packed log serves every question asked of it:

    r = reward_slope v_r,    u_i = (v_i - share_i) slope_i

with one share for rows that go on and one for rows that end their episode. `Affine` in dpdl.learner.layout holds these
numbers; utilities that are stored as such have the share 0 and the slope 1.
"""

from libc.stdint cimport int32_t, int64_t

# One logged transition, as packed by dpdl.data.packing: 16 + 8 I contiguous bytes.
#     int32 pair    index of the coordinate of (s, a)
#     int32 s_next  -1 if the episode ended: nothing follows
#     double r      stored columns: see above
#     double u[I]
ctypedef packed struct Head:
    int32_t pair
    int32_t s_next
    double r

ctypedef struct Utility:        # u = (v[column] - share) slope
    double[2] share             # of rows that go on, and of rows that end
    double slope
    int64_t column

ctypedef struct Model:
    const char *records
    int64_t stride              # bytes of one record
    int64_t n_utilities
    double gamma
    double reward_slope
    const Utility *utility
    double margin               # (1 - gamma) kappa: u^kappa = u - margin
    double end_margin           # kappa: the margin of all steps that would have followed, for a row that ended
    double rate_V               # eta / alpha_V
    double rate_lam             # eta / alpha_lam
    double rate_x               # eta / alpha_x
    double radius_V             # R_V
    double radius_lam           # R_L
    double B1                   # bound of sum x
    double B2                   # bound of sum x / mu_hat
    double c_min                # least 1 / mu_hat of all pairs

ctypedef struct Counters:
    int64_t steps
    int64_t[4] cases            # steps in each case of the x-update
    int64_t capped              # steps that left the sampled pair at its cap
    int64_t iterations          # evaluations of the root finder
    int64_t refreshes           # full recomputations of the running sums
    int64_t rebases             # bins whose factor was folded into their members (lazy core only)
    int64_t jumps               # x-updates out of reach of the binned sums, solved by direct summation (lazy core only)


cdef inline const Head *head(const Model *m, int64_t record) noexcept nogil:
    return <const Head *> (m.records + record * m.stride)


cdef inline void read_utilities(const Model *m, const Head *h, double *u) noexcept nogil:
    """u^kappa of a row: its steps and, if it ended, all that would have followed share kappa as gamma^t."""
    cdef const double *v = <const double *> (<const char *> h + sizeof(Head))
    cdef bint ended = h.s_next < 0
    cdef double margin = m.end_margin if ended else m.margin
    cdef int64_t i
    for i in range(m.n_utilities):
        u[i] = (v[m.utility[i].column] - m.utility[i].share[ended]) * m.utility[i].slope - margin
