//! Every reader of foreign bytes, with seeds of the right form and with what mutation makes of
//! them. The long run over the same list is `fuzz/run`.
//!
//! A failure prints the shortest input found, and the seed of the random numbers: run it again
//! with `PROPTEST_RNG_SEED=<seed>`. More inputs: `PROPTEST_CASES=1000000`.
#![expect(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fmt, fs,
    hash::{BuildHasher, RandomState},
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};

use proptest::{
    collection::vec,
    prelude::*,
    sample::Index,
    test_runner::{Config, RngSeed, TestRunner},
};
use shim_runc::foreign::{READERS, Reader};

/// Mutated inputs for each reader: a few seconds for all of them, not optimised.
const CASES: u32 = 1500;
/// A large input, as far as these go: the kernel hands out pages, clients a few kilobytes.
const LARGE: usize = 64 << 10;
/// What reading an input of `n` bytes may take: `FLOOR + FACTOR * n`. A protobuf field that nobody
/// knows takes 3 bytes on the wire and an entry of a map in memory.
const FLOOR: usize = 64 << 10;
const FACTOR: usize = 128;
/// The protobuf library makes room for what a length announces, up to this much, before it looks
/// for it. Address space only: what is not there is never written.
const ANNOUNCED: usize = 10_000_000;
const PROTOBUF: [&str; 5] =
    ["runtime-options", "start-answer", "start-stdin", "task-request", "ttrpc"];
/// Readers are linear, so this is over in seconds; it is here to tell a reader that is not.
const HANG: Duration = Duration::from_secs(120);

thread_local! {
    static USED: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// Counts what this thread allocates.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes on to the system's allocator as it came; counting does not allocate,
// since the counters are constants at first and have nothing to drop.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.get().saturating_add(layout.size());
        USED.set(used);
        PEAK.set(PEAK.get().max(used));
        // SAFETY: the caller keeps to the contract of `alloc`, which is the same one.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.set(USED.get().saturating_sub(layout.size()));
        // SAFETY: the pointer came from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Reads, and holds the reader to the bound of its memory.
fn read(reader: &Reader, bytes: &[u8]) {
    let before = USED.get();
    PEAK.set(before);
    (reader.read)(bytes);
    let announced = if PROTOBUF.contains(&reader.name) { ANNOUNCED } else { 0 };
    let (peak, most) = (PEAK.get() - before, announced + FLOOR + FACTOR * bytes.len());
    assert!(peak <= most, "{}: {} bytes took {peak} bytes of memory", reader.name, bytes.len());
}

/// The seeds of a reader; among them are the inputs that once broke a law.
fn seeds(reader: &Reader) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(reader.name);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
    let mut files: Vec<_> =
        entries.map(|entry| entry.expect("a directory is readable").path()).collect();
    files.sort_unstable();
    files.iter().map(|file| fs::read(file).expect("a seed is readable")).collect()
}

/// One change of an input.
#[derive(Debug, Clone)]
enum Mutation {
    Flip(Index, u8),
    Set(Index, u8),
    Cut(Index),
    Remove(Index, Index),
    Repeat(Index, Index),
    Insert(Index, &'static [u8]),
    /// The first part of this one, the last part of another seed.
    Splice(Index, Index, Index),
}

/// What readers are known to trip over: ends of number ranges, brackets, separators, half of a
/// character, tags of protobuf groups, lengths that are not there.
const PIECES: [&[u8]; 26] = [
    b"0",
    b"-1",
    b"4294967296",
    b"18446744073709551616",
    b"1e999",
    b"NaN",
    b"\"",
    b"\\",
    b"\n",
    b"\n\n",
    b"\0",
    b"{",
    b"[[[[[[[[",
    b"}]",
    b":",
    b"/../",
    b"//",
    b"%",
    b"%00",
    b"=",
    b",,",
    b"\xff",
    b"\xc3",
    b"\x0b\x0b\x0b\x0b",
    b"\xff\xff\xff\xff\x0f",
    b"null",
];

fn mutation() -> impl Strategy<Value = Mutation> {
    use Mutation as M;
    let at = any::<Index>;
    prop_oneof![
        (at(), 0..8_u8).prop_map(|(at, bit)| M::Flip(at, 1 << bit)),
        (at(), any::<u8>()).prop_map(|(at, byte)| M::Set(at, byte)),
        at().prop_map(M::Cut),
        (at(), at()).prop_map(|(from, to)| M::Remove(from, to)),
        (at(), at()).prop_map(|(from, to)| M::Repeat(from, to)),
        (at(), prop::sample::select(&PIECES[..])).prop_map(|(at, piece)| M::Insert(at, piece)),
        (at(), at(), at()).prop_map(|(at, other, from)| M::Splice(at, other, from)),
    ]
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let place = |at: &Index| at.index(bytes.len() + 1);
        let range = |from: &Index, to: &Index| {
            let (from, to) = (place(from), place(to));
            from.min(to)..from.max(to)
        };
        match self {
            Self::Flip(at, _) | Self::Set(at, _) if place(at) == bytes.len() => {}
            Self::Flip(at, bit) => {
                let at = place(at);
                bytes[at] ^= bit;
            }
            Self::Set(at, byte) => {
                let at = place(at);
                bytes[at] = *byte;
            }
            Self::Cut(at) => bytes.truncate(place(at)),
            Self::Remove(from, to) => drop(bytes.drain(range(from, to))),
            Self::Repeat(from, to) => {
                let piece = bytes[range(from, to)].to_vec();
                let at = place(from);
                bytes.splice(at..at, piece);
            }
            Self::Insert(at, piece) => {
                let at = place(at);
                bytes.splice(at..at, piece.iter().copied());
            }
            Self::Splice(at, other, from) => {
                let other = other.get(seeds);
                bytes.truncate(place(at));
                bytes.extend_from_slice(&other[from.index(other.len() + 1)..]);
            }
        }
    }
}

/// An input that is printed as a byte string.
#[derive(Clone)]
struct Input(Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// A seed and what several changes make of it.
fn inputs(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Input> {
    (any::<Index>(), vec(mutation(), 0..8)).prop_map(move |(first, mutations)| {
        let mut bytes = first.get(&seeds).clone();
        mutations.iter().for_each(|mutation| mutation.apply(&mut bytes, &seeds));
        Input(bytes)
    })
}

/// Runs `test` on a thread of its own, and fails when it does not come to an end.
fn ends(name: &'static str, test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let _done = done;
        test();
    });
    // Dropped at its end, whichever that is.
    let hangs = ended.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout);
    assert!(!hangs, "{name} hangs");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn seeds_are_read() {
    for reader in READERS {
        let seeds = seeds(reader);
        assert!(!seeds.is_empty(), "{} has no seeds", reader.name);
        seeds.iter().chain([&Vec::new()]).for_each(|seed| read(reader, seed));
    }
}

#[test]
fn whatever_seeds_become_is_survived() {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(()),
    };
    config.rng_seed = RngSeed::Fixed(seed);
    for reader in READERS {
        let config = config.clone();
        ends(reader.name, move || {
            let tried = TestRunner::new(config).run(&inputs(seeds(reader)), |input| {
                read(reader, &input.0);
                Ok(())
            });
            if let Err(error) = tried {
                panic!("{} (PROPTEST_RNG_SEED={seed}): {error}", reader.name);
            }
        });
    }
}

#[test]
fn large_inputs_take_their_size_and_no_more() {
    for reader in READERS {
        ends(reader.name, || {
            for seed in seeds(reader).iter().filter(|seed| !seed.is_empty()) {
                // Again and again, and each of its lines (or bytes) again and again.
                let repeat = |piece: &[u8]| piece.repeat(LARGE / piece.len());
                read(reader, &repeat(seed));
                let piece = seed.get(..seed.len().min(4)).unwrap_or_default();
                read(reader, &repeat(piece));
            }
            for piece in PIECES {
                read(reader, &piece.repeat(LARGE / piece.len()));
            }
        });
    }
}
