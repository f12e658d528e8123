//! containerd's content store: blobs in and out, for checkpoints.

use std::path::Path;

use tokio::{
    fs::File,
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tonic::{Code, Request, Status, Streaming, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use super::{Containerd, Scope, scoped};
use crate::{
    api::{
        Descriptor,
        content::{
            READ, ReadContentRequest, ReadContentResponse, WRITE, WriteAction, WriteContentRequest,
            WriteContentResponse,
        },
    },
    grpc::Requests,
};

/// Of a blob per message; containerd's own client sends as much.
const CHUNK: usize = 1 << 20;

impl Containerd {
    /// Copies a blob into a file.
    ///
    /// # Errors
    /// When there is no such blob, or the file cannot be written.
    pub(crate) async fn read_blob(
        &self,
        scope: &Scope,
        digest: &str,
        into: &Path,
    ) -> Result<(), Status> {
        let request = scoped(scope, ReadContentRequest { digest: digest.to_owned() })?;
        let codec = ProstCodec::<ReadContentRequest, ReadContentResponse>::default();
        let path = PathAndQuery::from_static(READ);
        let mut blob = self.grpc().server_streaming(request, path, codec).await?.into_inner();
        let failed = |error| Status::internal(format!("write {}: {error}", into.display()));
        let mut file = File::create(into).await.map_err(failed)?;
        while let Some(part) = blob.message().await? {
            file.write_all(&part.data).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)
    }

    /// Makes a blob of what `from` gives; `reference` names the attempt. A blob that is there
    /// already is as good.
    ///
    /// # Errors
    /// When it cannot be read or stored.
    pub(crate) async fn write_blob(
        &self,
        scope: &Scope,
        reference: &str,
        media_type: &str,
        mut from: impl AsyncRead + Unpin + Send,
    ) -> Result<Descriptor, Status> {
        // One message in flight: the store answers each, and sets the pace.
        let (messages, queue) = mpsc::channel(1);
        let mut message = WriteContentRequest { r#ref: reference.to_owned(), ..Default::default() };
        message.action = WriteAction::Stat.into();
        send(&messages, message.clone()).await;
        let mut answers = self.open_write(scope, queue).await?;
        message.offset = answer(&mut answers).await?.offset;
        message.action = WriteAction::Write.into();
        loop {
            message.data = next_chunk(&mut from).await?;
            if message.data.is_empty() {
                break;
            }
            send(&messages, message.clone()).await;
            message.offset = answer(&mut answers).await?.offset;
        }
        message.action = WriteAction::Stat.into();
        send(&messages, message.clone()).await;
        let WriteContentResponse { digest, offset: size, .. } = answer(&mut answers).await?;
        message.action = WriteAction::Commit.into();
        send(&messages, message).await;
        match answer(&mut answers).await {
            Err(status) if status.code() != Code::AlreadyExists => return Err(status),
            _ => {}
        }
        Ok(Descriptor { media_type: media_type.to_owned(), digest, size, ..Default::default() })
    }

    async fn open_write(
        &self,
        scope: &Scope,
        queue: mpsc::Receiver<WriteContentRequest>,
    ) -> Result<Streaming<WriteContentResponse>, Status> {
        let codec = ProstCodec::<WriteContentRequest, WriteContentResponse>::default();
        let request: Request<Requests<WriteContentRequest>> = scoped(scope, Requests(queue))?;
        let path = PathAndQuery::from_static(WRITE);
        self.grpc().streaming(request, path, codec).await.map(tonic::Response::into_inner)
    }
}

async fn next_chunk(from: &mut (impl AsyncRead + Unpin + Send)) -> Result<Vec<u8>, Status> {
    let mut chunk = Vec::with_capacity(CHUNK);
    let mut limited = from.take(CHUNK as u64);
    let read = limited.read_to_end(&mut chunk).await;
    read.map_err(|error| Status::internal(format!("read a checkpoint: {error}")))?;
    Ok(chunk)
}

async fn send(messages: &mpsc::Sender<WriteContentRequest>, message: WriteContentRequest) {
    // The receiver is the call itself: if it is gone, the next answer says why.
    let _ = messages.send(message).await;
}

async fn answer(
    answers: &mut Streaming<WriteContentResponse>,
) -> Result<WriteContentResponse, Status> {
    let answer = answers.message().await?;
    answer.ok_or_else(|| Status::unavailable("the content store ended a write"))
}
