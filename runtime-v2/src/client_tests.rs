use std::sync::{Arc, atomic::AtomicUsize};

use async_trait::async_trait;
use runtime_proto::{
    task::{ConnectRequest, ConnectResponse},
    ttrpc::{Request, Status},
};
use tokio::io::duplex;

use super::*;
use crate::ttrpc::{Handler, serve_connection};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// Serves one version of the task service and refuses others with `refusal`.
struct Shim {
    serves: &'static str,
    refusal: fn(&str) -> Status,
    calls: AtomicUsize,
}

#[async_trait]
impl Handler for Shim {
    async fn call(&self, request: Request) -> Result<Vec<u8>, Status> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if request.service != self.serves {
            // Lets calls that came together be refused together.
            tokio::task::yield_now().await;
            return Err((self.refusal)(&request.service));
        }
        let mut answer = ConnectResponse::new();
        answer.shim_pid = 7;
        Ok(answer.write_to_bytes().unwrap())
    }
}

fn like_go(service: &str) -> Status {
    Code::Unimplemented.status(&format!("service {service}"))
}

fn like_rust(service: &str) -> Status {
    let mut status = Status::new();
    status.code = Code::InvalidArgument.status("").code;
    status.message = format!("{service} service does not exist");
    status
}

fn client(serves: &'static str, refusal: fn(&str) -> Status) -> (TaskClient, Arc<Shim>) {
    let shim = Arc::new(Shim { serves, refusal, calls: AtomicUsize::new(0) });
    let (near, far) = duplex(1 << 16);
    tokio::spawn(serve_connection(far, shim.clone()));
    (TaskClient::over(Channel::Ttrpc(Connection::new(near, Vec::new())), 3), shim)
}

async fn first(client: &TaskClient) -> Result<First<ConnectResponse>, CallError> {
    client.first("Connect", &ConnectRequest::new(), LIMIT).await
}

#[tokio::test]
async fn a_shim_of_v3_is_called_once() {
    let (client, shim) = client(task::SERVICE_V3, like_go);
    assert!(!first(&client).await.unwrap().downgraded);
    assert_eq!((client.version(), shim.calls.load(Ordering::Relaxed)), (3, 1));
}

#[tokio::test]
async fn a_shim_of_v2_is_found_out_however_it_words_its_refusal() {
    for refusal in [like_go, like_rust] {
        let (client, shim) = client(task::SERVICE_V2, refusal);
        let answer = first(&client).await.unwrap();
        assert!(answer.downgraded);
        assert_eq!(answer.answer.shim_pid, 7);
        assert_eq!(client.version(), 2);
        assert!(!first(&client).await.unwrap().downgraded);
        assert_eq!(shim.calls.load(Ordering::Relaxed), 3, "refused, repeated, and v2 at once");
    }
}

#[tokio::test]
async fn a_shim_that_refuses_the_call_itself_goes_on_as_announced_and_has_its_own_word() {
    for refusal in [like_go, like_rust] {
        let (client, shim) = client("other", refusal);
        for calls in [2, 4] {
            let error = first(&client).await.unwrap_err();
            assert!(error.to_string().contains(task::SERVICE_V3), "{error}");
            assert_eq!((client.version(), shim.calls.load(Ordering::Relaxed)), (3, calls));
        }
    }
}

#[tokio::test]
async fn calls_that_come_together_downgrade_once() {
    for _ in 0..50 {
        let (client, _) = client(task::SERVICE_V2, like_go);
        let (a, b, c) = tokio::join!(first(&client), first(&client), first(&client));
        let downgraded = [a, b, c].into_iter().filter(|first| first.as_ref().unwrap().downgraded);
        assert_eq!(downgraded.count(), 1);
    }
}

#[tokio::test]
async fn other_refusals_are_just_refusals() {
    fn bad_request(_: &str) -> Status {
        Code::InvalidArgument.status("container id does not exist")
    }
    let (client, shim) = client("other", bad_request);
    assert_eq!(first(&client).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!((client.version(), shim.calls.load(Ordering::Relaxed)), (3, 1));
}
