//! The same service over gRPC.

use std::{io, sync::Arc};

use bytes::Bytes;
use h2::server::{SendResponse, handshake};
use http::{HeaderMap, HeaderValue, Response};
use runtime_proto::ttrpc::{Request, Status};
use runtime_v2::ttrpc::Handler;
use tokio::net::{UnixListener, UnixStream};

pub(crate) async fn serve(listener: UnixListener, handler: Arc<dyn Handler>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_connection(stream, Arc::clone(&handler)));
    }
}

async fn serve_connection(stream: UnixStream, handler: Arc<dyn Handler>) {
    let Ok(mut connection) = handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let handler = Arc::clone(&handler);
        tokio::spawn(async move {
            let (head, mut body) = request.into_parts();
            let mut bytes = Vec::new();
            while let Some(Ok(data)) = body.data().await {
                bytes.extend_from_slice(&data);
                let _ = body.flow_control().release_capacity(data.len());
            }
            let mut call = Request::new();
            let path = head.uri.path().trim_start_matches('/');
            let (service, method) = path.split_once('/').unwrap_or_default();
            (call.service, call.method) = (service.to_owned(), method.to_owned());
            call.payload = bytes.split_off(5.min(bytes.len()));
            // An error means that the client has gone.
            let _ = answer(respond, handler.call(call).await);
        });
    }
}

fn answer(
    mut respond: SendResponse<Bytes>,
    result: Result<Vec<u8>, Status>,
) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::new();
    let mut stream = respond.send_response(Response::new(()), false)?;
    match result {
        Ok(payload) => {
            let length = u32::try_from(payload.len()).unwrap_or(0);
            let mut frame = vec![0];
            frame.extend_from_slice(&length.to_be_bytes());
            frame.extend_from_slice(&payload);
            stream.send_data(frame.into(), false)?;
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
        }
        Err(status) => {
            trailers.insert("grpc-status", status.code.value().into());
            if let Ok(message) = HeaderValue::from_str(&status.message) {
                trailers.insert("grpc-message", message);
            }
        }
    }
    stream.send_trailers(trailers)
}
