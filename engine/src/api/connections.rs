//! Connections: each is a task that reads requests and writes answers, in turns, until one side ends it.
//!
//! A client that does not send the head of a request in time is hung up on, so that slow ones cannot hold
//! connections for ever; idle connections end by the same rule. (Bodies have a limit of their own, in
//! [`body`](super::body).) A client that closes its half of a connection has left.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::rt::{Sleep, Timer};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};

use crate::clock::{self, Clock};
use crate::limits;

const HEAD_TIME_MAX: Duration = Duration::from_millis(limits::HEAD_MS_MAX);
/// The pause after a failure to accept, which mostly means that too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(limits::ACCEPT_PAUSE_MS);

/// The connections of a server.
pub(super) struct Connections {
    router: Router,
    clock: Clock,
    builder: http1::Builder,
    live: GracefulShutdown,
}

impl Connections {
    /// None so far.
    pub(super) fn new(router: Router, clock: Clock) -> Self {
        let mut builder = http1::Builder::new();
        builder.timer(ClockTimer::new(clock.clone())).header_read_timeout(HEAD_TIME_MAX);
        Self { router, clock, builder, live: GracefulShutdown::new() }
    }

    /// Accepts connections until the future is dropped.
    pub(super) async fn accept(&self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.begin(stream),
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection");
                    self.clock.sleep_until(self.clock.now() + ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn begin(&self, stream: TcpStream) {
        // Tokens are small packets that must not wait for each other. Without it they come later.
        drop(stream.set_nodelay(true));
        let service = TowerToHyperService::new(self.router.clone());
        let connection = self.builder.serve_connection(TokioIo::new(stream), service);
        let connection = self.live.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }

    /// Lets every connection finish the answer that it is at, and resolves when all have ended.
    pub(super) async fn end(self) {
        self.live.shutdown().await;
    }
}

/// The engine's clock as hyper asks for it.
#[derive(Debug, Clone)]
struct ClockTimer {
    clock: Clock,
    /// The instant of the clock's origin.
    origin: Instant,
}

impl ClockTimer {
    fn new(clock: Clock) -> Self {
        let origin = clock::instant();
        Self { origin: origin.checked_sub(clock.now()).unwrap_or(origin), clock }
    }
}

impl Timer for ClockTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let clock = self.clock.clone();
        let due = deadline.saturating_duration_since(self.origin);
        let sleep = Box::pin(async move { clock.sleep_until(due).await });
        Box::pin(Slept(Mutex::new(sleep)))
    }

    fn now(&self) -> Instant {
        self.origin + self.clock.now()
    }
}

/// A sleep that threads may share, as hyper wants it, though one alone polls it.
struct Slept(Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Future for Slept {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.get_mut().as_mut().poll(context)
    }
}

impl Sleep for Slept {}
