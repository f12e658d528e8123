package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"containerd-task-manager/plugin/api"
	"containerd-task-manager/plugin/internal/fakemanager"
)

// limit is for whatever should happen at once.
const limit = 30 * time.Second

// behaviour is the environment variable by which a test tells this binary, started as a manager, how to be one.
const behaviour = "FAKE_MANAGER"

func TestMain(m *testing.M) {
	if how := os.Getenv(behaviour); how != "" {
		os.Exit(beManager(how))
	}
	os.Exit(m.Run())
}

// beManager does what a manager does that is started with `attach --address SOCK --until-eof ...`.
func beManager(how string) int {
	address := os.Args[3]
	if os.Getenv("NOTIFY_SOCKET") != "" {
		fmt.Fprintln(os.Stderr, "fakemanager: readiness would be told to the service manager")
		return 9
	}
	switch how {
	case "silent":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	case "fails":
		fmt.Fprintln(os.Stderr, "fakemanager: no luck")
		return 3
	case "chatty":
		fmt.Println("hello")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	}
	// One that was killed has left its socket.
	_ = os.Remove(address)
	manager := &fakemanager.Manager{OnLoad: func(r *api.LoadRequest) (*api.LoadResponse, error) {
		note(r.State, fmt.Sprintf("load %d containers", len(r.Containers)))
		switch how {
		case "elder":
			return nil, fmt.Errorf("protocol 1 is not spoken here: %w", errdefs.ErrFailedPrecondition)
		case "newer":
			return &api.LoadResponse{ProtocolMajor: api.ProtocolMajor + 1}, nil
		}
		return &api.LoadResponse{ProtocolMajor: api.ProtocolMajor, Version: fmt.Sprint(os.Getpid())}, nil
	}}
	end, err := manager.Listen(address)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fakemanager:", err)
		return 1
	}
	fmt.Println("ready")
	os.Stdout.Close()
	_, _ = io.Copy(io.Discard, os.Stdin)
	end()
	note(filepath.Dir(address), "stopped well")
	return 0
}

// note appends a line to a file that the test reads.
func note(dir, line string) {
	file, err := os.OpenFile(filepath.Join(dir, "notes"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintln(file, line)
		file.Close()
	}
}

func notes(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "notes"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// command starts this test's own binary as a manager of a kind.
func command(t *testing.T, how string) (Command, string) {
	t.Helper()
	t.Setenv(behaviour, how)
	// Short, since a socket lies in it.
	dir, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Command{Binary: own, Address: filepath.Join(dir, "m.sock"), LogLevel: "info", LogFormat: "text"}, dir
}

// loadFrom gives one container more at each load.
func loadFrom(dir string) LoadFunc {
	count := 0
	return func(context.Context) (*api.LoadRequest, error) {
		count++
		return &api.LoadRequest{State: dir, Containers: make([]*api.Container, count)}, nil
	}
}

func start(t *testing.T, launcher Launcher, load LoadFunc) *Supervisor {
	t.Helper()
	s, err := Start(context.Background(), launcher, load)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestManagerStopsWellWithItsSupervisor(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nonexistent")
	launcher, dir := command(t, "well")
	s := start(t, launcher, loadFrom(dir))
	client, err := s.Client(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	process := client.peer.(*child).command.Process
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := notes(t, dir); len(got) != 2 || got[1] != "stopped well" {
		t.Fatalf("notes: %q", got)
	}
	if err := process.Signal(syscall.Signal(0)); err == nil {
		t.Fatal("the process is there")
	}
	if _, err := s.Client(context.Background()); !errdefs.IsUnavailable(err) {
		t.Fatalf("after the end: %v", err)
	}
}

func TestKilledManagerIsReplacedAndLoadedAnew(t *testing.T) {
	launcher, dir := command(t, "well")
	s := start(t, launcher, loadFrom(dir))
	for round := range 3 {
		client, err := s.Client(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("load %d containers", round+1)
		if got := notes(t, dir); len(got) != round+1 || got[round] != want {
			t.Fatalf("round %d, notes: %q", round, got)
		}
		if err := client.peer.(*child).command.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-client.gone:
		case <-time.After(limit):
			t.Fatal("the end is not seen")
		}
	}
}

func TestManagerIsFoundBesideOurOwnExecutable(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("fake-manager-%d", os.Getpid())
	beside := filepath.Join(filepath.Dir(own), name)
	if err := os.Symlink(own, beside); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(beside)
	if found, err := find(name); err != nil || found != beside {
		t.Errorf("%s, %v", found, err)
	}
	if found, err := find("./" + name); err == nil {
		t.Errorf("a path is looked up: %s", found)
	}
}

func TestFirstManagerThatCannotComeUpIsToldApart(t *testing.T) {
	missing, dir := command(t, "well")
	missing.Binary = "no-such-manager"
	if _, err := Start(context.Background(), missing, loadFrom(dir)); !errdefs.IsNotFound(err) ||
		!strings.Contains(err.Error(), "no-such-manager") || !strings.Contains(err.Error(), "binary") {
		t.Errorf("missing: %v", err)
	}
	elder, dir := command(t, "elder")
	if _, err := Start(context.Background(), elder, loadFrom(dir)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("elder: %v", err)
	}
	if got := notes(t, dir); got[0] != "load 1 containers" || got[len(got)-1] != "stopped well" {
		t.Errorf("elder, notes: %q", got)
	}
	newer, dir := command(t, "newer")
	if _, err := Start(context.Background(), newer, loadFrom(dir)); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "version") {
		t.Errorf("newer: %v", err)
	}
	chatty, dir := command(t, "chatty")
	if _, err := Start(context.Background(), chatty, loadFrom(dir)); err == nil || !strings.Contains(err.Error(), `"hello`) {
		t.Errorf("chatty: %v", err)
	}
}

func TestFirstManagerIsTriedForUntilTheLimit(t *testing.T) {
	for _, how := range []string{"fails", "silent"} {
		launcher, dir := command(t, how)
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		_, err := Start(ctx, launcher, loadFrom(dir))
		if err == nil || errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", how, err)
		}
	}
}

// later becomes another kind of manager than the first one was.
func later(t *testing.T, s *Supervisor, how string) {
	t.Helper()
	client, err := s.Client(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(behaviour, how)
	if err := client.peer.(*child).command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-client.gone
}

func TestManagerThatDoesNotComeUpAgainIsTriedForMoreAndMoreSeldom(t *testing.T) {
	launcher, dir := command(t, "well")
	tries := make(chan struct{}, 100)
	s := start(t, launcherFunc(func(ctx context.Context) (Peer, *net.UnixConn, error) {
		tries <- struct{}{}
		return launcher.Launch(ctx)
	}), loadFrom(dir))
	<-tries
	began := time.Now()
	later(t, s, "fails")
	const seen = 5
	for range seen {
		<-tries
	}
	// Each pause is at least twice as long as the one before; that they can be longer on a busy machine does no harm.
	if took := time.Since(began); took < (1<<(seen-1))*shortestPause {
		t.Errorf("%d tries within %v", seen, took)
	}
	// Whoever calls meanwhile is told so, and not kept.
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if _, err := s.Client(ctx); !errdefs.IsUnavailable(err) {
		t.Errorf("meanwhile: %v", err)
	}
	t.Setenv(behaviour, "well")
	if _, err := s.Await(ctx); err != nil {
		t.Errorf("in the end: %v", err)
	}
}

type launcherFunc func(context.Context) (Peer, *net.UnixConn, error)

func (f launcherFunc) Launch(ctx context.Context) (Peer, *net.UnixConn, error) { return f(ctx) }

func TestManagerThatIsLateIsWaitedFor(t *testing.T) {
	_, dir := command(t, "well")
	address := filepath.Join(dir, "m.sock")
	manager := &fakemanager.Manager{}
	result := make(chan error, 1)
	go func() {
		s, err := Start(context.Background(), Socket{Address: "unix://" + address}, loadFrom(dir))
		if err == nil {
			err = s.Close()
		}
		result <- err
	}()
	end, err := manager.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if len(manager.Loads()) != 1 {
		t.Fatalf("%d loads", len(manager.Loads()))
	}
}

func TestStrangerThatComesBackIsLoadedAnew(t *testing.T) {
	_, dir := command(t, "well")
	address := filepath.Join(dir, "m.sock")
	first := &fakemanager.Manager{}
	end, err := first.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, Socket{Address: address}, loadFrom(dir))
	client, err := s.Client(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	end()
	<-client.gone
	second := &fakemanager.Manager{}
	end, err = second.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if _, err := s.Client(context.Background()); err != nil {
		t.Fatal(err)
	}
	if loads := second.Loads(); len(loads) != 1 || len(loads[0].Containers) < 2 {
		t.Fatalf("loads: %v", loads)
	}
}

func TestAwaitLastsOverTheEndOfTheSupervisor(t *testing.T) {
	launcher, dir := command(t, "well")
	s := start(t, launcher, loadFrom(dir))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
}
