//! A server and peers that ask too much of it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    frame,
    ttrpc::{Request, Response, Status},
};
use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::yield_now,
    time::timeout,
};

use super::{
    budget::{CALL, ROOM, UNIT, WAITS},
    message::{self, Incoming},
    server::{Kind, MAX_MESSAGE, Service, connection},
};

/// Detects hangs; nothing here takes long.
const HANG: Duration = Duration::from_secs(60);

/// Keeps every call until it is told, and counts them.
#[derive(Default)]
struct Holds {
    under_way: AtomicUsize,
    open: watch::Sender<bool>,
}

struct UnderWay<'a>(&'a Holds);

impl<'a> UnderWay<'a> {
    fn new(holds: &'a Holds) -> Self {
        holds.under_way.fetch_add(1, Ordering::Relaxed);
        Self(holds)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service for Holds {
    fn kind(&self, method: &str) -> Kind {
        match method {
            "Wait" => Kind::Waits,
            "Look" => Kind::Looks,
            _ => Kind::Changes,
        }
    }

    async fn call(
        self: Arc<Self>,
        _: String,
        method: String,
        payload: Vec<u8>,
    ) -> Result<Vec<u8>, Status> {
        match method.as_str() {
            "Quick" => return Ok(Vec::new()),
            "Quote" => {
                let text = String::from_utf8_lossy(&payload).into_owned();
                return Err(Code::InvalidArgument.status(&format!("{text:?}")));
            }
            _ => {}
        }
        let _one = UnderWay::new(&self);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        drop(payload);
        Ok(Vec::new())
    }
}

impl Holds {
    fn count(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Waits until this many calls are under way.
    async fn reach(&self, count: usize) {
        let reached = async {
            while self.count() != count {
                yield_now().await;
            }
        };
        assert!(timeout(HANG, reached).await.is_ok(), "{} instead of {count}", self.count());
    }

    /// As many turns as it would take to begin more.
    async fn stay(&self, count: usize) {
        for _ in 0..2000 {
            yield_now().await;
        }
        assert_eq!(self.count(), count);
    }
}

struct Peer {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    next: u32,
}

impl Peer {
    fn of(service: &Arc<Holds>) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        tokio::spawn(connection(theirs, Arc::clone(service)));
        let (reader, writer) = ours.into_split();
        Self { reader, writer, next: 1 }
    }

    async fn send(&mut self, method: &str, size: usize, count: usize) {
        self.next = send(&mut self.writer, self.next, method, size, count).await;
    }

    async fn answer(&mut self) -> (u32, Option<Status>) {
        answer(&mut self.reader).await
    }

    async fn answers(&mut self, count: usize) -> BTreeSet<u32> {
        answers(&mut self.reader, count).await
    }
}

/// Sends calls of a method with `size` bytes each, from stream `next` on; the one after them.
async fn send(
    writer: &mut OwnedWriteHalf,
    mut next: u32,
    method: &str,
    size: usize,
    count: usize,
) -> u32 {
    let mut request = Request::new();
    method.clone_into(&mut request.method);
    request.payload = "é".repeat(size / 2).into_bytes();
    let request = request.write_to_bytes().unwrap();
    for _ in 0..count {
        message::write(writer, next, frame::TYPE_REQUEST, &request).await.unwrap();
        next += 2;
    }
    next
}

async fn answer(reader: &mut OwnedReadHalf) -> (u32, Option<Status>) {
    let read = timeout(HANG, message::read(reader)).await.expect("no answer");
    let Some(Incoming::Whole(header, payload)) = read.unwrap() else { panic!("no answer") };
    let status = Response::parse_from_bytes(&payload).unwrap().status.into_option();
    (header.stream_id, status)
}

/// The streams of this many answers, all of them good.
async fn answers(reader: &mut OwnedReadHalf, count: usize) -> BTreeSet<u32> {
    let mut streams = BTreeSet::new();
    for _ in 0..count {
        let (stream, status) = answer(reader).await;
        assert!(status.is_none(), "{status:?}");
        assert!(streams.insert(stream), "{stream} was answered twice");
    }
    streams
}

#[tokio::test]
async fn a_failure_that_quotes_too_much_is_answered_all_the_same() {
    let mut peer = Peer::of(&Arc::default());
    // Twice the size, once it is quoted.
    peer.send("Quote", 2 << 20, 1).await;
    let (stream, status) = peer.answer().await;
    let status = status.unwrap();
    assert_eq!((stream, status.code.value()), (1, Code::InvalidArgument.number()));
    assert!(status.message.len() <= MAX_MESSAGE && status.message.ends_with("[...]"));
}

#[tokio::test]
async fn calls_beyond_the_room_are_read_later_and_none_is_turned_away() {
    const CALLS: usize = 5000;
    let service = Arc::<Holds>::default();
    let Peer { mut reader, mut writer, .. } = Peer::of(&service);
    let flood = tokio::spawn(async move { send(&mut writer, 1, "Change", 100, CALLS).await });
    let most = ROOM / (CALL + 1);
    service.reach(most).await;
    service.stay(most).await;
    // Others have room of their own.
    let mut other = Peer::of(&service);
    other.send("Quick", 0, 1).await;
    assert_eq!(other.answers(1).await, BTreeSet::from([1]));
    service.open.send_replace(true);
    assert_eq!(answers(&mut reader, CALLS).await.len(), CALLS);
    flood.await.unwrap();
}

#[tokio::test]
async fn large_calls_take_much_room() {
    const SIZE: usize = 3 << 20;
    let service = Arc::<Holds>::default();
    let mut peer = Peer::of(&service);
    let flood = async {
        peer.send("Change", SIZE, 20).await;
        peer
    };
    let watch = async {
        let most = ROOM / (CALL + SIZE / UNIT + 1);
        service.reach(most).await;
        service.stay(most).await;
        service.open.send_replace(true);
    };
    let (mut peer, ()) = tokio::join!(flood, watch);
    assert_eq!(peer.answers(20).await.len(), 20);
}

#[tokio::test]
async fn calls_that_wait_for_an_end_leave_room_for_those_that_bring_it() {
    let service = Arc::<Holds>::default();
    let mut peer = Peer::of(&service);
    peer.send("Wait", 100, 10_000).await;
    service.reach(10_000).await;
    peer.send("Quick", 0, 1).await;
    assert_eq!(peer.answers(1).await, BTreeSet::from([20_001]));
    service.open.send_replace(true);
    assert_eq!(peer.answers(10_000).await.len(), 10_000);
}

#[tokio::test]
async fn one_too_many_that_waits_for_an_end_is_told_so() {
    let service = Arc::<Holds>::default();
    let mut peer = Peer::of(&service);
    peer.send("Wait", 100, WAITS).await;
    service.reach(WAITS).await;
    peer.send("Wait", 100, 1).await;
    let (_, status) = peer.answer().await;
    assert_eq!(status.unwrap().code.value(), Code::ResourceExhausted.number());
    peer.send("Quick", 0, 1).await;
    peer.answers(1).await;
    drop(peer);
    service.reach(0).await;
}

#[tokio::test]
async fn a_peer_that_goes_while_there_is_no_room_takes_its_calls_with_it() {
    let service = Arc::<Holds>::default();
    let mut peer = Peer::of(&service);
    let most = ROOM / (CALL + 1);
    // The last ones are not read, and stay in the socket.
    peer.send("Look", 100, most + 20).await;
    service.reach(most).await;
    drop(peer);
    service.reach(0).await;
}
