//! What the allocator of the C library is told.
#![expect(unsafe_code, reason = "mallopt has no safe wrapper")]

/// Has all threads share one arena. Must be called before there are any.
///
/// Otherwise nearly every thread gets its own, and keeps there what it once needed: the manager would hold more memory after
/// work than before, and the more the more threads it has had.
pub(crate) fn share_arena() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes two integers, and there is no other thread yet. Refused, it changes nothing.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}
