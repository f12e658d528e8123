//! The mount system calls that nix does not wrap, loop devices, and a process that does nothing
//! but hold a user namespace. The only unsafe code of this room.
#![expect(
    unsafe_code,
    reason = "raw system calls without a safe wrapper in nix or the standard library"
)]

use std::ffi::CStr;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long};
use nix::errno::Errno;

/// A detached copy of the mount that `from` is in, with `from` as its root.
pub(super) fn clone_tree(from: BorrowedFd<'_>, recursive: bool) -> io::Result<OwnedFd> {
    let all = if recursive { libc::AT_RECURSIVE.cast_unsigned() } else { 0 };
    let flags =
        libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH.cast_unsigned() | all;
    // SAFETY: the descriptor is open while it is borrowed, and the path is a C string.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, from.as_raw_fd(), c"".as_ptr(), flags) };
    made_by_kernel(fd)
}

/// Shows the owners of files in a detached tree as the user namespace maps them.
pub(super) fn map_ids(tree: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::from(user_namespace.as_raw_fd().cast_unsigned()),
    };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: both descriptors are open while they are borrowed, the path is a C string, and the
    // structure is passed with its own size.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of_val(&attributes),
        )
    };
    check(done)
}

/// Attaches a detached tree on top of the directory or file `to`.
pub(super) fn attach(tree: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let (tree, to, none) = (tree.as_raw_fd(), to.as_raw_fd(), c"".as_ptr());
    // SAFETY: both descriptors are open while they are borrowed, and the paths are C strings.
    check(unsafe { libc::syscall(libc::SYS_move_mount, tree, none, to, none, flags) })
}

/// A filesystem being configured (fsopen(2)).
#[derive(Debug)]
pub(super) struct FsContext(OwnedFd);

impl FsContext {
    pub(super) fn open(fs_type: &CStr) -> io::Result<Self> {
        let flags = libc::FSOPEN_CLOEXEC;
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::syscall(libc::SYS_fsopen, fs_type.as_ptr(), flags) };
        made_by_kernel(fd).map(Self)
    }

    /// `key=value`, or `key` alone.
    pub(super) fn set(&self, key: &CStr, value: Option<&CStr>) -> io::Result<()> {
        let (command, value) = match value {
            Some(value) => (libc::FSCONFIG_SET_STRING, value.as_ptr()),
            None => (libc::FSCONFIG_SET_FLAG, std::ptr::null()),
        };
        let fd = self.0.as_raw_fd();
        // SAFETY: the descriptor is ours, the key is a C string, and so is the value of the
        // command that takes one.
        check(unsafe { libc::syscall(libc::SYS_fsconfig, fd, command, key.as_ptr(), value, 0) })
    }

    /// Makes the filesystem, and a detached mount of it.
    pub(super) fn mount(&self, attributes: u64) -> io::Result<OwnedFd> {
        let (fd, none) = (self.0.as_raw_fd(), std::ptr::null::<libc::c_char>());
        let create = libc::FSCONFIG_CMD_CREATE;
        // SAFETY: the descriptor is ours, and this command takes neither key nor value.
        check(unsafe { libc::syscall(libc::SYS_fsconfig, fd, create, none, none, 0) })?;
        let flags = libc::FSMOUNT_CLOEXEC;
        // SAFETY: the descriptor is ours; the rest are integers.
        made_by_kernel(unsafe { libc::syscall(libc::SYS_fsmount, fd, flags, attributes) })
    }

    /// What the kernel has to say about the last failure.
    pub(super) fn message(&self) -> Option<String> {
        let mut text = [0; 512];
        let length = nix::unistd::read(&self.0, &mut text).ok()?;
        let text = String::from_utf8_lossy(text.get(..length)?);
        // Each message begins with its severity: `e overlay: …`.
        Some(text.trim_start_matches("e ").trim_end().to_owned())
    }
}

const LOOP_SET_FD: u64 = 0x4C00;
const LOOP_CLR_FD: u64 = 0x4C01;
const LOOP_SET_STATUS64: u64 = 0x4C04;
const LOOP_CONFIGURE: u64 = 0x4C0A;
const LOOP_CTL_GET_FREE: u64 = 0x4C82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Debug)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
#[derive(Debug)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// The number of a loop device that nobody uses at this moment.
pub(super) fn free_loop_device(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: the descriptor is open while it is borrowed; this request takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
    Errno::result(number).map(c_int::cast_unsigned).map_err(io::Error::from)
}

/// Backs a loop device with a file, until nobody has the device open or mounted.
/// EBUSY says that another process was faster.
pub(super) fn back_loop_device(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    read_only: bool,
    name: &[u8],
) -> io::Result<()> {
    let mut file_name = [0; 64];
    // The last byte stays zero. The name is for those who list the devices, and may be cut.
    file_name.iter_mut().take(63).zip(name).for_each(|(to, from)| *to = *from);
    let read_only = if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    let config = LoopConfig {
        fd: file.as_raw_fd().cast_unsigned(),
        block_size: 0,
        info: LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_AUTOCLEAR | read_only,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    let device = device.as_raw_fd();
    // SAFETY: the descriptors are open while they are borrowed, and the structure is the one of
    // this request.
    let done = unsafe { libc::ioctl(device, LOOP_CONFIGURE as _, &raw const config) };
    match Errno::result(done) {
        // Before Linux 5.8 it takes two steps.
        Err(Errno::EINVAL | Errno::ENOTTY) => {
            back_in_two_steps(device, file.as_raw_fd(), &config.info)
        }
        other => other.map(drop).map_err(io::Error::from),
    }
}

fn back_in_two_steps(device: RawFd, file: RawFd, info: &LoopInfo) -> io::Result<()> {
    // SAFETY: the caller borrows both descriptors; this request takes an integer.
    check(unsafe { libc::ioctl(device, LOOP_SET_FD as _, file) }.into())?;
    // SAFETY: the caller borrows the descriptor, and the structure is the one of this request.
    let done = unsafe { libc::ioctl(device, LOOP_SET_STATUS64 as _, std::ptr::from_ref(info)) };
    if let Err(error) = Errno::result(done) {
        // SAFETY: the caller borrows the descriptor; this request takes no argument.
        unsafe { libc::ioctl(device, LOOP_CLR_FD as _, 0) };
        return Err(error.into());
    }
    Ok(())
}

/// A process in a user namespace of its own, which does nothing until it is dropped.
///
/// It sends no signal when it ends and is invisible to `waitpid(-1)`: the shim's reaper, who waits
/// for everything else, never sees it.
#[derive(Debug)]
pub(super) struct NamespaceHolder {
    pid: c_int,
    /// The process ends when this is closed, by whatever means.
    lifeline: Option<PipeWriter>,
}

impl NamespaceHolder {
    pub(super) fn start() -> io::Result<Self> {
        let (end, lifeline) = io::pipe()?;
        let flags = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
        // Flags, four pointers and numbers, stack, stack size, tls (clone3(2)). No exit signal.
        let arguments: [u64; 8] = [flags, 0, 0, 0, 0, 0, 0, 0];
        let size = size_of_val(&arguments);
        // SAFETY: the arguments have the size they are passed with; without shared memory this
        // forks, and the child below makes nothing but system calls, as a fork of a process with
        // threads requires.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size) };
        match check(pid) {
            Ok(()) if pid == 0 => wait_for_end(&end, &lifeline),
            Ok(()) => {
                let pid = c_int::try_from(pid).map_err(io::Error::other)?;
                Ok(Self { pid, lifeline: Some(lifeline) })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn pid(&self) -> c_int {
        self.pid
    }
}

/// The life of the child.
fn wait_for_end(end: &PipeReader, lifeline: &PipeWriter) -> ! {
    let mut byte = 0_u8;
    // SAFETY: the descriptor is this process's copy, which nobody uses any more.
    unsafe { libc::close(lifeline.as_raw_fd()) };
    // SAFETY: one byte is read into a buffer of one byte.
    unsafe { libc::read(end.as_raw_fd(), (&raw mut byte).cast(), 1) };
    // SAFETY: this ends the process at once, without running anything of the parent's.
    unsafe { libc::_exit(0) }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        // SAFETY: a null status is allowed, and the pid is that of our own unreaped child.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WCLONE) };
    }
}

fn check(result: c_long) -> io::Result<()> {
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// Takes a descriptor that a system call has just made.
fn made_by_kernel(result: c_long) -> io::Result<OwnedFd> {
    let fd = Errno::result(result).map_err(io::Error::from)?;
    let fd = c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened this descriptor for us, with close-on-exec set.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
