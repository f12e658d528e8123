//! The allocator of the shim and of the task manager's program, which are to hold after work what they held before.
//!
//! That of the C library keeps up to seven free pieces of each small size, wherever in the heap they are, and each of
//! them holds its page: after some thousand processes most of a shim's memory is such pages, and a manager's grows with
//! its work. dlmalloc keeps no pieces aside, but gives memory back late, so what is large is not for it: that gets a
//! mapping of its own.
#![expect(unsafe_code, reason = "an allocator hands out raw memory; mallopt has no safe wrapper")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr,
};

use dlmalloc::GlobalDlmalloc;

/// What is large, in bytes: eight pages, so that rounding up to whole ones costs little.
const LARGE: usize = 32 << 10;
/// The same, for the C library.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: libc::c_int = 32 << 10;

/// Small pieces are dlmalloc's, large ones the C library's.
#[derive(Debug)]
pub struct BySize;

impl BySize {
    fn keeper(size: usize) -> &'static dyn GlobalAlloc {
        if size < LARGE { &GlobalDlmalloc } else { &System }
    }
}

// SAFETY: both keepers are allocators; which of them has a piece follows from the size in its layout alone, and callers
// give the same layout to every call for a piece.
unsafe impl GlobalAlloc for BySize {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, that the size is not 0, is handed on.
        unsafe { Self::keeper(layout.size()).alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        unsafe { Self::keeper(layout.size()).alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: the piece was allocated with this layout, so by this keeper.
        unsafe { Self::keeper(layout.size()).dealloc(piece, layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if (layout.size() < LARGE) == (size < LARGE) {
            // SAFETY: the piece is this keeper's, and so will it be with its new size.
            return unsafe { Self::keeper(size).realloc(piece, layout, size) };
        }
        // SAFETY: the alignment is that of a layout, and callers promise that the size rounded up to it is no overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: callers promise that the size is not 0.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: the old piece has the old size and the new one the new size; they are different pieces.
            unsafe { ptr::copy_nonoverlapping(piece, moved, layout.size().min(size)) };
            // SAFETY: the piece was allocated with this layout, and is not used any more.
            unsafe { self.dealloc(piece, layout) };
        }
        moved
    }
}

/// Has the C library hold on to as little as it can; before any thread exists.
///
/// One arena: the few short-lived threads of the blocking pool share the heap of the main one, instead of making a heap
/// each that outlives them.
pub fn frugal() {
    #[cfg(target_env = "gnu")]
    for (name, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD)] {
        // SAFETY: mallopt takes two integers, and no other thread allocates yet.
        unsafe { libc::mallopt(name, value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(piece: *mut u8, size: usize) -> &'static mut [u8] {
        assert!(!piece.is_null());
        // SAFETY: the tests below pass pieces of at least this size, and use them up before they free them.
        unsafe { std::slice::from_raw_parts_mut(piece, size) }
    }

    #[test]
    fn pieces_keep_their_bytes_when_they_move_between_the_keepers() {
        let layout = |size| Layout::from_size_align(size, 64).unwrap();
        let pattern = |at: usize| u8::try_from(at % 251).unwrap();
        let mut size = 1;
        // SAFETY: the size is not 0.
        let mut piece = unsafe { BySize.alloc(layout(size)) };
        for next in [LARGE - 1, LARGE, 3 * LARGE, LARGE - 1, 10, LARGE + 1, 1] {
            for (at, byte) in bytes_of(piece, size).iter_mut().enumerate() {
                *byte = pattern(at);
            }
            // SAFETY: the piece has this layout, and the new size is not 0.
            piece = unsafe { BySize.realloc(piece, layout(size), next) };
            assert_eq!(piece.align_offset(64), 0, "{next}");
            let kept = bytes_of(piece, size.min(next));
            assert!(kept.iter().enumerate().all(|(at, byte)| *byte == pattern(at)), "{next}");
            size = next;
        }
        // SAFETY: the piece has this layout.
        unsafe { BySize.dealloc(piece, layout(size)) };
    }

    #[test]
    fn zeroed_pieces_are_zero_also_where_something_was_before() {
        for size in [1, 100, LARGE - 1, LARGE, 4 * LARGE] {
            let layout = Layout::from_size_align(size, 4096).unwrap();
            for _ in 0..3 {
                // SAFETY: the size is not 0.
                let piece = unsafe { BySize.alloc_zeroed(layout) };
                assert_eq!(piece.align_offset(4096), 0, "{size}");
                let bytes = bytes_of(piece, size);
                assert!(bytes.iter().all(|byte| *byte == 0), "{size}");
                bytes.fill(0xff);
                // SAFETY: the piece has this layout.
                unsafe { BySize.dealloc(piece, layout) };
            }
        }
    }
}
