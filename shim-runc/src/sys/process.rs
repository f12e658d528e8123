//! Forking, being a subreaper, dying with one's parent, pidfds.
#![expect(unsafe_code, reason = "fork, pre_exec, prctl and pidfd calls have no safe wrapper")]

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
    sys::{signal::Signal, wait::WaitPidFlag},
    unistd::{ForkResult, Pid},
};

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Fork {
    /// The process that forked, with the pid of the new one.
    Parent(Pid),
    /// The new process.
    Child,
}

/// Splits this process in two.
///
/// # Errors
/// When threads exist, since they and the locks they hold would not be in the child; or when the
/// kernel refuses.
pub fn fork() -> io::Result<Fork> {
    // The cheapest way to ask: it has no effect with one thread, and is refused with more. Where a filter does not let us ask,
    // that is no answer.
    if unshare(CloneFlags::CLONE_THREAD) == Err(Errno::EINVAL) {
        return Err(io::Error::other("cannot fork with threads"));
    }
    // SAFETY: there is one thread, so the child has every lock free and may go on as the parent.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Fork::Parent(child)),
        ForkResult::Child => Ok(Fork::Child),
    }
}

/// Makes this process the parent of orphaned descendants.
///
/// # Errors
/// When the kernel refuses.
pub fn become_subreaper() -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).map_err(io::Error::from)
}

/// Starts a core-scheduling group for this process and all it forks from now on.
///
/// # Errors
/// When the kernel has no core scheduling, or refuses.
pub fn share_core() -> io::Result<()> {
    const PR_SCHED_CORE: libc::c_int = 62;
    const CREATE: libc::c_ulong = 1;
    const SCOPE_PROCESS_GROUP: libc::c_ulong = 2;
    // SAFETY: this prctl takes integers only.
    let done = unsafe { libc::prctl(PR_SCHED_CORE, CREATE, 0, SCOPE_PROCESS_GROUP, 0) };
    Errno::result(done).map(drop).map_err(io::Error::from)
}

/// Makes the kernel kill the started process when the thread that starts it ends.
///
/// An OCI runtime that outlived its shim could finish a `create` after the clean-up of the dead
/// shim, and leave a container that nobody knows of. The main thread starts all runtimes.
pub fn die_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let arm = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        if nix::unistd::getppid() == parent {
            Ok(())
        } else {
            // The parent died before the signal was armed.
            Err(io::Error::from(Errno::ESRCH))
        }
    };
    // SAFETY: the closure makes two system calls and allocates nothing, as is required after fork.
    unsafe { command.pre_exec(arm) };
}

/// A handle of a process that stays that process's, however pids are reused.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// A handle of `pid`, which must be an unreaped child of the caller to be the right process.
    ///
    /// # Errors
    /// When there is no such process, or the kernel has no pidfds.
    pub fn open(pid: Pid) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        let fd = Errno::result(fd).map_err(io::Error::from)?;
        let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor for us, and closes it on exec.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a signal by its number, which may be a real-time one.
    ///
    /// # Errors
    /// `ESRCH` when the process is gone, `EINVAL` for a number that is no signal.
    pub fn send(&self, signal: i32) -> Result<(), Errno> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        let fd = self.0.as_raw_fd();
        // SAFETY: the descriptor is open for as long as `self`; a null siginfo is allowed.
        let done = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, no_info, 0) };
        Errno::result(done).map(drop)
    }
}

/// Sends a signal to a pid, for kernels without pidfds.
///
/// # Errors
/// As kill(2).
pub fn kill(pid: Pid, signal: i32) -> Result<(), Errno> {
    // SAFETY: kill takes two integers.
    Errno::result(unsafe { libc::kill(pid.as_raw(), signal) }).map(drop)
}

/// Whether `pid` is a child of this process that nobody has waited for yet, alive or not.
pub fn is_unreaped_child(pid: Pid) -> bool {
    use nix::sys::wait::Id;
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    #[expect(clippy::disallowed_methods, reason = "WNOWAIT looks at a child and takes nothing")]
    nix::sys::wait::waitid(Id::Pid(pid), look).is_ok()
}

/// Collects one child that has ended, if there is one: its pid, and its exit code or 128 + signal.
///
/// nix cannot express an end by a real-time signal, and would lose it.
pub fn collect_child() -> Option<(Pid, u32)> {
    let mut status: libc::c_int = 0;
    loop {
        // SAFETY: waitpid writes one int, which outlives the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        match Errno::result(pid) {
            Ok(0) | Err(Errno::ECHILD) => return None,
            Ok(pid) if libc::WIFEXITED(status) => {
                return Some((Pid::from_raw(pid), libc::WEXITSTATUS(status).cast_unsigned()));
            }
            Ok(pid) => {
                return Some((Pid::from_raw(pid), 128 + libc::WTERMSIG(status).cast_unsigned()));
            }
            // Interrupted: ask again. No other error is possible with these arguments.
            Err(_) => {}
        }
    }
}

/// Takes over a descriptor that the starter of this process left open under a known number.
///
/// # Errors
/// When nothing is open under that number.
pub fn inherited(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is only looked at, for the length of this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    nix::fcntl::fcntl(borrowed, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    // SAFETY: it is open, as fcntl has shown, and by the contract of starters it is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Fails where fewer than `count` descriptors can be opened.
///
/// # Errors
/// `EMFILE`, or why not even one can be.
pub fn enough_descriptors(count: i32) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, fcntl};
    // It has the lowest number that is free.
    let first = File::open("/dev/null")?;
    let last = first.as_raw_fd() + count - 1;
    let last = fcntl(&first, FcntlArg::F_DUPFD_CLOEXEC(last)).map_err(|errno| match errno {
        // That number is beyond the limit.
        Errno::EINVAL => Errno::EMFILE,
        errno => errno,
    })?;
    // SAFETY: the kernel has just made this descriptor for us.
    drop(unsafe { OwnedFd::from_raw_fd(last) });
    Ok(())
}

/// Does what a program needs that Rust's runtime has not begun: writing to a pipe that nobody reads is an error and not the
/// end, and standard streams that are closed are /dev/null, lest their numbers go to something else.
pub fn begin() {
    // SAFETY: a signal that is ignored runs nothing.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let mut streams = [0, 1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    // SAFETY: it is given three entries, which outlive the call, and does not wait.
    unsafe { libc::poll(streams.as_mut_ptr(), 3, 0) };
    for _ in streams.iter().filter(|stream| stream.revents & libc::POLLNVAL != 0) {
        // It gets the lowest number that is free. If it cannot be opened, nothing else can.
        if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
            let _stays_open = null.into_raw_fd();
        }
    }
}

/// Closes everything but the standard streams. Before this process opens anything itself.
pub fn close_inherited() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: close_range takes integers. No descriptor from 3 on belongs to an object of this
    // process: the caller has opened none. A kernel without the call leaves them open.
    unsafe { libc::close_range(FIRST, libc::c_uint::MAX, 0) };
}

/// Waits for a child that was forked here and is no reaper's business.
pub fn wait_for(pid: Pid) {
    #[expect(clippy::disallowed_methods, reason = "the starter has one child and no reaper")]
    let _ = nix::sys::wait::waitpid(pid, None);
}

/// Ends this process as it is: for a fork that is to run nothing of what the original has set up for its own end.
pub fn end() -> ! {
    // SAFETY: this takes an integer and does not return.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_enough_up_to_the_limit() {
        let (limit, _) =
            nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        enough_descriptors(16).unwrap();
        let beyond = i32::try_from(limit).unwrap();
        assert_eq!(enough_descriptors(beyond).unwrap_err().raw_os_error(), Some(libc::EMFILE));
    }

    #[test]
    fn a_process_with_threads_is_not_forked() {
        let held = std::thread::spawn(std::thread::park);
        assert!(fork().is_err());
        held.thread().unpark();
        held.join().unwrap();
    }
}
