use http::{HeaderValue, Response};
use tokio::io::{DuplexStream, duplex};

use super::*;

/// Upper bound for things that must happen; only a hang meets it.
const HANG: Duration = Duration::from_secs(20);

/// Echoes, refuses, or is silent, by the method.
async fn serve(stream: DuplexStream) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tokio::spawn(async move {
            let (head, mut body) = request.into_parts();
            let mut bytes = Vec::new();
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                bytes.extend_from_slice(&data);
                body.flow_control().release_capacity(data.len()).unwrap();
            }
            assert_eq!(head.headers[NAMESPACE_KEY], "ns");
            let mut trailers = HeaderMap::new();
            match head.uri.path() {
                "/s/Echo" => {
                    let mut stream = respond.send_response(Response::new(()), false).unwrap();
                    stream.send_data(bytes.into(), false).unwrap();
                    trailers.insert("grpc-status", HeaderValue::from_static("0"));
                    stream.send_trailers(trailers).unwrap();
                }
                "/s/Hang" => std::future::pending().await,
                "/s/Reset" => respond.send_reset(h2::Reason::INTERNAL_ERROR),
                "/s/ResetLate" => {
                    let mut stream = respond.send_response(Response::new(()), false).unwrap();
                    stream.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
                }
                _ => {
                    let mut response = Response::new(());
                    response.headers_mut().insert("grpc-status", HeaderValue::from_static("12"));
                    let message = HeaderValue::from_static("unknown%20m%C3%A9thod%");
                    response.headers_mut().insert("grpc-message", message);
                    respond.send_response(response, true).unwrap();
                }
            }
        });
    }
}

async fn connect() -> (GrpcConnection, tokio::task::JoinHandle<()>) {
    let (near, far) = duplex(1 << 16);
    let serving = tokio::spawn(serve(far));
    (GrpcConnection::new(near, "ns".into()).await.unwrap(), serving)
}

#[tokio::test]
async fn messages_of_every_size_come_back() {
    let (connection, _serving) = connect().await;
    for size in [0, 1, 100_000, MAX_PAYLOAD] {
        let payload = vec![7; size];
        assert_eq!(connection.call("s", "Echo", &payload, Some(HANG)).await, Ok(payload));
    }
    let large = connection.call("s", "Echo", &vec![7; MAX_PAYLOAD + 1], Some(HANG)).await;
    assert!(matches!(large, Err(CallError::TooLarge(_))));
}

#[tokio::test]
async fn a_refusal_keeps_its_code_and_words() {
    let (connection, _serving) = connect().await;
    let message = "unknown méthod%".into();
    let refused = connection.call("s", "Nope", b"", Some(HANG)).await;
    assert_eq!(refused, Err(CallError::Refused { code: Code::Unimplemented, message }));
}

/// A closed connection is a dead shim, whose container is ended.
#[tokio::test]
async fn a_call_that_the_peer_breaks_off_is_no_closed_connection() {
    let (connection, _serving) = connect().await;
    for (method, code) in [("Reset", Code::Internal), ("ResetLate", Code::ResourceExhausted)] {
        let broken = connection.call("s", method, b"", Some(HANG)).await.unwrap_err();
        assert!(matches!(broken, CallError::Refused { .. }), "{method}: {broken:?}");
        assert_eq!(broken.code(), code, "{method}");
        assert!(!connection.is_closed());
        assert_eq!(connection.call("s", "Echo", b"x", Some(HANG)).await, Ok(b"x".to_vec()));
    }
}

#[tokio::test]
async fn a_deadline_costs_only_its_own_call() {
    let (connection, _serving) = connect().await;
    let limit = Duration::from_millis(5);
    for _ in 0..300 {
        let hung = connection.call("s", "Hang", b"", Some(limit)).await;
        assert_eq!(hung, Err(CallError::Deadline(limit)));
    }
    assert_eq!(connection.call("s", "Echo", b"x", Some(HANG)).await, Ok(b"x".to_vec()));
}

#[tokio::test]
async fn the_end_of_either_side_ends_calls_and_is_seen() {
    for ours in [false, true] {
        let (connection, serving) = connect().await;
        let caller = connection.clone();
        let call = tokio::spawn(async move { caller.call("s", "Hang", b"", None).await });
        assert_eq!(connection.call("s", "Echo", b"x", Some(HANG)).await, Ok(b"x".to_vec()));
        if ours {
            connection.close();
        } else {
            serving.abort();
        }
        timeout(HANG, connection.when_closed()).await.unwrap();
        assert!(connection.is_closed());
        assert_eq!(timeout(HANG, call).await.unwrap().unwrap(), Err(CallError::Closed));
        assert_eq!(connection.call("s", "Echo", b"x", Some(HANG)).await, Err(CallError::Closed));
    }
}
