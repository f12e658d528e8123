use std::future::pending;

use async_trait::async_trait;
use runtime_proto::{
    frame::{TYPE_REQUEST, TYPE_RESPONSE},
    ttrpc::{Response, Status},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    time::timeout,
};

use super::*;
use crate::ttrpc::{Answer, Client, Handler, serve_connection};

/// Upper bound for things that must happen; only a hang meets it.
const HANG: Duration = Duration::from_secs(20);

struct Echo;

#[async_trait]
impl Handler for Echo {
    async fn call(&self, request: Request) -> Result<Vec<u8>, Status> {
        match request.method.as_str() {
            "Echo" => Ok(request.payload),
            "Hang" => pending().await,
            "Metadata" => Ok(request
                .metadata
                .iter()
                .map(|pair| pair.value.as_str())
                .collect::<String>()
                .into_bytes()),
            "Large" => Ok(vec![0; MAX_PAYLOAD + 1]),
            _ => Err(Code::Unimplemented.status(&request.method)),
        }
    }
}

fn connect() -> Connection {
    let (client, server) = duplex(1 << 16);
    tokio::spawn(serve_connection(server, Arc::new(Echo)));
    Connection::new(client, vec![("containerd-namespace-ttrpc".into(), "ns".into())])
}

async fn echo(connection: &Connection, payload: &[u8]) -> Result<Vec<u8>, CallError> {
    connection.call("s", "Echo", payload.to_vec(), Some(HANG)).await
}

#[tokio::test]
async fn many_calls_share_a_connection() {
    let connection = connect();
    let calls: Vec<_> = (0..200u32)
        .map(|n| {
            let connection = connection.clone();
            tokio::spawn(async move { echo(&connection, &n.to_be_bytes()).await })
        })
        .collect();
    for (n, call) in calls.into_iter().enumerate() {
        let n = u32::try_from(n).unwrap();
        assert_eq!(call.await.unwrap(), Ok(n.to_be_bytes().to_vec()));
    }
    let metadata = connection.call("s", "Metadata", Vec::new(), Some(HANG)).await;
    assert_eq!(metadata, Ok(b"ns".to_vec()));
}

#[tokio::test]
async fn a_refusal_keeps_its_code_and_words() {
    let error = connect().call("s", "Nope", Vec::new(), Some(HANG)).await.unwrap_err();
    let message = "Nope: not implemented".into();
    assert_eq!(error, CallError::Refused { code: Code::Unimplemented, message });
}

#[tokio::test]
async fn a_deadline_costs_only_its_own_call() {
    let connection = connect();
    let limit = Duration::from_millis(5);
    for _ in 0..1000 {
        let call = connection.call("s", "Hang", Vec::new(), Some(limit));
        assert_eq!(call.await, Err(CallError::Deadline(limit)));
    }
    assert!(connection.pending.lock().is_empty(), "calls that are over leave nothing behind");
    assert_eq!(echo(&connection, b"x").await, Ok(b"x".to_vec()));
}

#[tokio::test]
async fn a_peer_that_never_reads_holds_back_only_memory_of_the_queue() {
    let (client, server) = duplex(64);
    let connection = Connection::new(client, Vec::new());
    let limit = Duration::from_millis(200);
    let calls: Vec<_> = (0..500)
        .map(|_| {
            let connection = connection.clone();
            let payload = vec![0; 1000];
            tokio::spawn(async move { connection.call("s", "Echo", payload, Some(limit)).await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), Err(CallError::Deadline(limit)));
    }
    assert!(connection.pending.lock().is_empty());
    // When the peer reads again, calls whose callers left are not sent to it.
    tokio::spawn(serve_connection(server, Arc::new(Echo)));
    assert_eq!(echo(&connection, b"x").await, Ok(b"x".to_vec()));
}

#[tokio::test]
async fn too_large_fails_one_call_and_no_other() {
    let connection = connect();
    let large = vec![0; MAX_PAYLOAD + 1];
    assert!(matches!(echo(&connection, &large).await, Err(CallError::TooLarge(_))));
    let answer = connection.call("s", "Large", Vec::new(), Some(HANG)).await;
    assert!(matches!(answer, Err(CallError::TooLarge(_))), "{answer:?}");
    assert_eq!(echo(&connection, &large[..3 << 20]).await.map(|echo| echo.len()), Ok(3 << 20));
}

#[tokio::test]
async fn the_end_of_the_peer_ends_every_call_and_is_seen() {
    let (client, server) = duplex(1 << 16);
    let serving = tokio::spawn(serve_connection(server, Arc::new(Echo)));
    let connection = Connection::new(client, Vec::new());
    let caller = connection.clone();
    let call = tokio::spawn(async move { caller.call("s", "Hang", Vec::new(), None).await });
    assert_eq!(echo(&connection, b"x").await, Ok(b"x".to_vec()));
    serving.abort();
    assert_eq!(call.await.unwrap(), Err(CallError::Closed));
    tokio::time::timeout(HANG, connection.closed()).await.unwrap();
    assert!(connection.is_closed());
    assert_eq!(echo(&connection, b"x").await, Err(CallError::Closed));
}

#[tokio::test]
async fn our_own_close_ends_calls_in_flight() {
    let connection = connect();
    let caller = connection.clone();
    let call = tokio::spawn(async move { caller.call("s", "Hang", Vec::new(), None).await });
    assert_eq!(echo(&connection, b"x").await, Ok(b"x".to_vec()));
    connection.close();
    assert_eq!(call.await.unwrap(), Err(CallError::Closed));
    tokio::time::timeout(HANG, connection.closed()).await.unwrap();
}

/// A server whose calls end when their clients leave, and say so.
struct Patient;

#[async_trait]
impl Handler for Patient {
    async fn call(&self, request: Request) -> Result<Vec<u8>, Status> {
        Echo.call(request).await
    }

    async fn call_until(&self, request: Request, mut client: Client) -> Option<Answer> {
        if request.method == "Undo" {
            client.left().await;
            return Some(Err(Code::Canceled.status("undone")));
        }
        tokio::select! {
            answer = self.call(request) => Some(answer),
            () = client.left() => None,
        }
    }
}

fn request(stream_id: u32, method: &str) -> Vec<u8> {
    let mut request = Request::new();
    method.clone_into(&mut request.method);
    let body = request.write_to_bytes().unwrap();
    let length = u32::try_from(body.len()).unwrap();
    let head = Header { length, stream_id, kind: TYPE_REQUEST, flags: 0 };
    [&head.encode()[..], &body].concat()
}

#[tokio::test]
async fn a_client_that_closes_its_half_is_answered_by_calls_that_undo_something() {
    let (mut client, server) = duplex(1 << 16);
    let serving = tokio::spawn(serve_connection(server, Arc::new(Patient)));
    client.write_all(&request(1, "Hang")).await.unwrap();
    client.write_all(&request(3, "Undo")).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answered = Vec::new();
    tokio::time::timeout(HANG, client.read_to_end(&mut answered)).await.unwrap().unwrap();
    let head = Header::decode(answered[..HEADER_LEN].try_into().unwrap());
    assert_eq!((head.stream_id, head.kind), (3, TYPE_RESPONSE));
    let answer = Response::parse_from_bytes(&answered[HEADER_LEN..]).unwrap();
    assert_eq!(answer.status.code.value(), Code::Canceled.number());
    tokio::time::timeout(HANG, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_has_no_more_under_way_than_there_is_room_for() {
    let (client, server) = duplex(1 << 16);
    tokio::spawn(serve_connection(server, Arc::new(Echo)));
    let connection = Connection::new(client, Vec::new());
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let connection = connection.clone();
        let payload = vec![0; 3 << 20];
        calls.spawn(async move { connection.call("s", "Hang", payload, None).await });
    }
    // The others are under way, and hang.
    for _ in 0..50 {
        let refused = timeout(HANG, calls.join_next()).await.unwrap().unwrap().unwrap();
        assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    }
    // Those that are small still find some.
    assert_eq!(echo(&connection, b"x").await, Ok(b"x".to_vec()));
}
