package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

const (
	// readyLimit is for a process to bind a socket and say so.
	readyLimit = 10 * time.Second
	// stopLimit is for a manager to end what it is at, for which it has 10 seconds. Then it is killed, which it is made for.
	stopLimit = 15 * time.Second
	// readyLine is what the manager writes when its socket is bound.
	readyLine = "ready\n"
)

// Command starts managers as child processes.
//
// A manager's life hangs on a pipe: it stops when it reads the end of its standard input, whose other end is held here and
// by nobody else. So it goes with this process, however that ends.
type Command struct {
	// Binary is a path, or a name that is looked up in PATH and then beside our own executable.
	Binary string
	// Address is the socket that the manager is to bind.
	Address string
	// LogLevel and LogFormat of its log, which goes to our standard error.
	LogLevel, LogFormat string
	// Metrics is the address at which it is to serve them, if at all.
	Metrics string
}

// Launch starts a manager and connects to it.
func (c Command) Launch(ctx context.Context) (Peer, *net.UnixConn, error) {
	binary, err := find(c.Binary)
	if err != nil {
		return nil, nil, err
	}
	child, err := c.start(binary)
	if err != nil {
		return nil, nil, fmt.Errorf("starting %s: %w", binary, err)
	}
	connection, err := child.becomeReady(ctx)
	if err != nil {
		child.kill()
		return nil, nil, err
	}
	log.G(ctx).WithFields(log.Fields{"binary": binary, "pid": child.command.Process.Pid}).Info("started the task manager")
	return child, connection, nil
}

func (c Command) start(binary string) (*child, error) {
	arguments := []string{"attach",
		"--address", c.Address, "--until-eof", "--log-level", c.LogLevel, "--log-format", c.LogFormat}
	if c.Metrics != "" {
		arguments = append(arguments, "--metrics", c.Metrics)
	}
	command := exec.Command(binary, arguments...)
	// Readiness is told by a line; the service manager waits for that of containerd.
	command.Env = without(os.Environ(), "NOTIFY_SOCKET")
	command.Stderr = os.Stderr
	// A Ctrl-C at containerd's terminal is containerd's to act on.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe: Wait closes that one, and we read while we wait.
	stdout, theirs, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return nil, err
	}
	command.Stdout = theirs
	err = command.Start()
	theirs.Close()
	if err != nil {
		stdin.Close()
		stdout.Close()
		return nil, err
	}
	child := &child{
		command: command, stdin: stdin, stdout: stdout, address: c.Address, ended: make(chan struct{}),
	}
	go child.reap()
	return child, nil
}

// find gives the path of an executable.
func find(binary string) (string, error) {
	path, err := exec.LookPath(binary)
	if err == nil {
		return filepath.Abs(path)
	}
	if own, ownErr := os.Executable(); ownErr == nil && !strings.Contains(binary, "/") {
		if beside, besideErr := exec.LookPath(filepath.Join(filepath.Dir(own), binary)); besideErr == nil {
			return beside, nil
		}
	}
	return "", fmt.Errorf("%s is not installed (%v): set `binary` in [plugins.\"io.containerd.runtime.v2.task\"]: %w",
		binary, err, errdefs.ErrNotFound)
}

func without(environment []string, name string) []string {
	var kept []string
	for _, variable := range environment {
		if !strings.HasPrefix(variable, name+"=") {
			kept = append(kept, variable)
		}
	}
	return kept
}

// child is a manager that was started here.
type child struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	stdout  *os.File
	address string
	// ended is closed when the process has ended and how is known.
	ended chan struct{}
	how   error
}

func (c *child) reap() {
	c.how = c.command.Wait()
	close(c.ended)
}

// becomeReady waits until the manager's socket is bound, and connects to it.
func (c *child) becomeReady(ctx context.Context) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	defer c.stdout.Close()
	// The end of the context ends the read.
	stop := context.AfterFunc(ctx, func() { _ = c.stdout.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := bufio.NewReader(c.stdout).ReadString('\n')
	switch {
	case line == readyLine:
		return c.Dial(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("the task manager does not become ready: %w", errdefs.ErrUnavailable)
	case errors.Is(err, io.EOF):
		return nil, c.endedEarly()
	}
	return nil, fmt.Errorf("the task manager says %q where %q is due (%v): %w", line, readyLine, err, errdefs.ErrNotImplemented)
}

// endedEarly is the error for a manager that closed its output without a word. It has said why on standard error.
func (c *child) endedEarly() error {
	select {
	case <-c.ended:
		return fmt.Errorf("the task manager ended before it was ready, see its log lines above (%v): %w", c.how, errdefs.ErrUnavailable)
	case <-time.After(stopLimit):
		return fmt.Errorf("the task manager neither ends nor becomes ready: %w", errdefs.ErrUnavailable)
	}
}

// Dial connects to its socket.
func (c *child) Dial(ctx context.Context) (*net.UnixConn, error) { return dial(ctx, c.address) }

// Stop lets it end, and kills it if it does not.
func (c *child) Stop() error {
	c.stdin.Close()
	select {
	case <-c.ended:
		return nil
	case <-time.After(stopLimit):
	}
	c.kill()
	return fmt.Errorf("it did not stop within %v and was killed", stopLimit)
}

func (c *child) kill() {
	c.stdin.Close()
	// An error says that it has ended already.
	_ = c.command.Process.Kill()
	<-c.ended
}
