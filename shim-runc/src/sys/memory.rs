//! Settings of the C library's allocator.
#![expect(unsafe_code, reason = "mallopt and malloc_trim have no safe wrapper")]

/// Freed memory at the top of the heap that is given back at once, in bytes.
const TRIM_THRESHOLD: libc::c_int = 64 << 10;
/// Allocations from this size on get a mapping of their own, which ends with them.
const MMAP_THRESHOLD: libc::c_int = 64 << 10;

/// Makes the allocator hold on to as little as it can; before any thread exists.
///
/// One arena: the few short-lived threads of the blocking pool share the heap of the main one,
/// instead of making a heap each that outlives them.
pub fn frugal() {
    for (name, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD),
        (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD),
    ] {
        // SAFETY: mallopt takes two integers, and no other thread allocates yet.
        unsafe { libc::mallopt(name, value) };
    }
}

/// Gives free pages in the middle of the heap back to the kernel.
pub fn trim() {
    // SAFETY: malloc_trim takes an integer and locks what it touches.
    unsafe { libc::malloc_trim(0) };
}
