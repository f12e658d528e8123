package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/runtime"
	shims "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"containerd-task-manager/plugin/api"
	"containerd-task-manager/plugin/internal/fakemanager"
	"containerd-task-manager/plugin/internal/supervisor"
)

// limit is for whatever should happen at once.
const limit = 30 * time.Second

// ground is a runtime over a fake manager, with records of its own.
type ground struct {
	*Runtime
	address string
	end     func()
}

func layGround(t *testing.T, manager *fakemanager.Manager) *ground {
	t.Helper()
	// Short, since a socket lies in it.
	dir, err := os.MkdirTemp("", "pl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file, err := bolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	db := metadata.NewDB(file, nil, nil)
	if err := db.Init(context.Background()); err != nil {
		t.Fatal(err)
	}
	g := &ground{address: filepath.Join(dir, "m.sock")}
	g.listen(t, manager)
	records := newRecords(db)
	load := func(ctx context.Context) (*api.LoadRequest, error) {
		containers, sandboxes, err := records.all(ctx)
		return loadRequest(&api.LoadRequest{}, containers, sandboxes), err
	}
	managers, err := supervisor.Start(context.Background(), supervisor.Socket{Address: g.address}, load)
	if err != nil {
		t.Fatal(err)
	}
	g.Runtime = &Runtime{managers: managers, records: records, sandboxes: sandboxShims{}, state: dir}
	t.Cleanup(func() {
		g.Close()
		g.end()
	})
	return g
}

// sandboxShims are those of the `shim` sandboxer, by the sandboxes' ids.
type sandboxShims map[string]shims.ShimInstance

func (s sandboxShims) Get(_ context.Context, id string) (shims.ShimInstance, error) {
	if shim, ok := s[id]; ok {
		return shim, nil
	}
	return nil, errdefs.ErrNotFound
}

// sandboxShim is one of them, as far as it is asked.
type sandboxShim struct{ shims.ShimInstance }

func (sandboxShim) Endpoint() (string, int) { return "ttrpc+unix:///own", 3 }

func (g *ground) listen(t *testing.T, manager *fakemanager.Manager) {
	t.Helper()
	end, err := manager.Listen(g.address)
	if err != nil {
		t.Fatal(err)
	}
	g.end = end
}

// again calls until the end of the last manager has been noticed.
func again(t *testing.T, call func() error) {
	t.Helper()
	for start := time.Now(); ; {
		err := call()
		if err == nil {
			return
		}
		if !errdefs.IsUnavailable(err) || time.Since(start) > limit {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func namespaced() context.Context {
	return namespaces.WithNamespace(context.Background(), "k8s.io")
}

// namespaceOf is the namespace that a call came with.
func namespaceOf(ctx context.Context) string {
	header, _ := ttrpc.GetMetadataValue(ctx, "containerd-namespace-ttrpc")
	return header
}

func taskIn(namespace string) func(context.Context, *api.GetRequest) (*api.GetResponse, error) {
	return func(_ context.Context, r *api.GetRequest) (*api.GetResponse, error) {
		return &api.GetResponse{Task: &api.Task{Namespace: namespace, Id: r.Id, Pid: 42}}, nil
	}
}

func TestCreateHandsOverEverything(t *testing.T) {
	var got *api.CreateRequest
	g := layGround(t, &fakemanager.Manager{
		OnCreate: func(ctx context.Context, r *api.CreateRequest) (*api.CreateResponse, error) {
			got = r
			return &api.CreateResponse{Task: &api.Task{Namespace: namespaceOf(ctx), Id: r.Id, Pid: 7}}, nil
		},
	})
	ctx := namespaced()
	spec, err := typeurl.MarshalAny(&specs.Spec{Version: "1.2.0"})
	if err != nil {
		t.Fatal(err)
	}
	options, err := typeurl.MarshalAny(&types.RuntimeVersion{Version: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.records.sandboxes.Create(ctx, sandbox.Sandbox{
		ID: "pod", Sandboxer: "podsandbox", Runtime: sandbox.RuntimeOpts{Name: "io.containerd.runc.v2"},
	}); err != nil {
		t.Fatal(err)
	}
	task, err := g.Create(ctx, "c1", runtime.CreateOpts{
		Spec:            spec,
		Rootfs:          []mount.Mount{{Type: "overlay", Source: "o", Target: "t", Options: []string{"a", "b"}}},
		IO:              runtime.IO{Stdin: "in", Stdout: "out", Stderr: "err", Terminal: true},
		Checkpoint:      "/cp",
		RestoreFromPath: true,
		Runtime:         "io.containerd.runc.v2",
		RuntimeOptions:  options,
		TaskOptions:     options,
		SandboxID:       "pod",
		Address:         "ttrpc+unix:///s",
		Version:         3,
	})
	if err != nil {
		t.Fatal(err)
	}
	pid, err := task.PID(ctx)
	if task.ID() != "c1" || task.Namespace() != "k8s.io" || pid != 7 || err != nil {
		t.Errorf("task %s of %s, pid %d, %v", task.ID(), task.Namespace(), pid, err)
	}
	want := &api.CreateRequest{
		Id: "c1", Spec: typeurl.MarshalProto(spec),
		Rootfs: []*api.Mount{{Type: "overlay", Source: "o", Target: "t", Options: []string{"a", "b"}}},
		Stdin:  "in", Stdout: "out", Stderr: "err", Terminal: true,
		Checkpoint: "/cp", RestoreFromPath: true, Runtime: "io.containerd.runc.v2",
		RuntimeOptions: typeurl.MarshalProto(options), TaskOptions: typeurl.MarshalProto(options),
		SandboxId: "pod", SandboxKnown: true, TaskApiAddress: "ttrpc+unix:///s", TaskApiVersion: 3,
	}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	// What the client does not say of a sandbox's own shim is known to the sandboxer.
	g.sandboxes = sandboxShims{"pod": sandboxShim{}}
	if _, err := g.Create(ctx, "c3", runtime.CreateOpts{SandboxID: "pod"}); err != nil {
		t.Fatal(err)
	}
	want = &api.CreateRequest{
		Id: "c3", SandboxId: "pod", SandboxKnown: true, TaskApiAddress: "ttrpc+unix:///own", TaskApiVersion: 3,
	}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	// Nothing that can be absent is made up, and a sandbox that is not on record is said to be none.
	if _, err := g.Create(ctx, "c2", runtime.CreateOpts{SandboxID: "unknown"}); err != nil {
		t.Fatal(err)
	}
	if want := (&api.CreateRequest{Id: "c2", SandboxId: "unknown"}); !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestLoadNamesWhatIsOnRecordInEveryNamespace(t *testing.T) {
	manager := &fakemanager.Manager{}
	g := layGround(t, manager)
	for _, name := range []string{"a", "b"} {
		ctx := namespaces.WithNamespace(context.Background(), name)
		spec, _ := typeurl.MarshalAny(&specs.Spec{})
		if _, err := g.records.containers.Create(ctx, containers.Container{
			ID: "c-" + name, Spec: spec, Runtime: containers.RuntimeInfo{Name: "run." + name},
		}); err != nil {
			t.Fatal(err)
		}
	}
	ctx := namespaces.WithNamespace(context.Background(), "b")
	if _, err := g.records.sandboxes.Create(ctx, sandbox.Sandbox{
		ID: "s", Sandboxer: "shim", Runtime: sandbox.RuntimeOpts{Name: "r"},
	}); err != nil {
		t.Fatal(err)
	}
	g.end()
	next := &fakemanager.Manager{OnGet: taskIn("a")}
	g.listen(t, next)
	again(t, func() error {
		_, err := g.Get(namespaced(), "c-a")
		return err
	})
	if loads := manager.Loads(); len(loads) != 1 || len(loads[0].Containers)+len(loads[0].Sandboxes) != 0 {
		t.Errorf("first: %v", loads)
	}
	want := &api.LoadRequest{
		Containers: []*api.Container{
			{Namespace: "a", Id: "c-a", Runtime: "run.a"}, {Namespace: "b", Id: "c-b", Runtime: "run.b"},
		},
		Sandboxes: []*api.Sandbox{{Namespace: "b", Id: "s"}},
	}
	if loads := next.Loads(); len(loads) != 1 || !proto.Equal(loads[0], want) {
		t.Errorf("next: %v", loads)
	}
}

func TestTaskThatCannotBeLookedAtIsNotTakenForNone(t *testing.T) {
	g := layGround(t, &fakemanager.Manager{
		OnGet: func(context.Context, *api.GetRequest) (*api.GetResponse, error) {
			return nil, fmt.Errorf("busy: %w", errdefs.ErrUnavailable)
		},
		OnState: func(context.Context, *taskapi.StateRequest) (*taskapi.StateResponse, error) {
			return nil, fmt.Errorf("busy: %w", errdefs.ErrUnavailable)
		},
	})
	if err := os.MkdirAll(filepath.Join(g.state, "k8s.io", "there"), 0o700); err != nil {
		t.Fatal(err)
	}
	task, err := g.Get(namespaced(), "there")
	if err != nil || task.ID() != "there" || task.Namespace() != "k8s.io" {
		t.Fatalf("%v, %v", task, err)
	}
	if _, err := task.State(namespaced()); !errdefs.IsUnavailable(err) {
		t.Errorf("its state: %v", err)
	}
	// Whoever is about to create it must not be told that it is there.
	if _, err := g.Get(namespaced(), "not-there"); !errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
}

func TestTaskOfACreateUnderWhichTheManagerEndedIsRemoved(t *testing.T) {
	called, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	g := layGround(t, &fakemanager.Manager{
		OnCreate: func(context.Context, *api.CreateRequest) (*api.CreateResponse, error) {
			close(called)
			<-over
			return nil, nil
		},
	})
	result := make(chan error, 1)
	go func() {
		_, err := g.Create(namespaced(), "c", runtime.CreateOpts{})
		result <- err
	}()
	<-called
	g.end()
	var mu sync.Mutex
	var asked []string
	ask := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, what)
	}
	g.listen(t, &fakemanager.Manager{
		OnGet: taskIn("k8s.io"),
		OnKill: func(_ context.Context, r *taskapi.KillRequest) (*emptypb.Empty, error) {
			ask(fmt.Sprintf("kill %s %d", r.ID, r.Signal))
			return &emptypb.Empty{}, nil
		},
		OnDelete: func(_ context.Context, r *api.DeleteRequest) (*api.DeleteResponse, error) {
			ask("delete " + r.Id)
			return &api.DeleteResponse{}, nil
		},
	})
	select {
	case err := <-result:
		if !errdefs.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
	case <-time.After(limit):
		t.Fatal("the create does not come back")
	}
	mu.Lock()
	defer mu.Unlock()
	if fmt.Sprint(asked) != "[kill c 9 delete c]" {
		t.Errorf("asked: %q", asked)
	}
}

func TestCodesAreKept(t *testing.T) {
	for _, class := range []error{
		errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrInvalidArgument, errdefs.ErrFailedPrecondition,
		errdefs.ErrUnavailable, errdefs.ErrNotImplemented, errdefs.ErrUnknown, context.DeadlineExceeded,
	} {
		g := layGround(t, &fakemanager.Manager{
			OnGet: func(context.Context, *api.GetRequest) (*api.GetResponse, error) {
				return nil, fmt.Errorf("task c: %w", class)
			},
			OnDelete: func(context.Context, *api.DeleteRequest) (*api.DeleteResponse, error) {
				return nil, fmt.Errorf("task c: %w", class)
			},
		})
		if _, err := g.Get(namespaced(), "c"); !errors.Is(err, class) {
			t.Errorf("get, %v: %v", class, err)
		}
		_, err := g.Delete(namespaced(), "c")
		if want := fmt.Sprintf("task c: %v", class); err == nil || err.Error() != want {
			t.Errorf("delete, %v: %v", class, err)
		}
	}
}

func TestCallsOfATaskGoToItsNamespace(t *testing.T) {
	var seen []string
	manager := &fakemanager.Manager{
		OnGet: taskIn("other"),
		OnState: func(ctx context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
			seen = append(seen, namespaceOf(ctx)+" "+r.ID+" "+r.ExecID)
			return &taskapi.StateResponse{Pid: 9}, nil
		},
	}
	g := layGround(t, manager)
	task, err := g.Get(namespaced(), "c")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := task.State(namespaced()); err != nil {
		t.Fatal(err)
	}
	exec, err := task.Process(context.Background(), "e")
	if err != nil {
		t.Fatal(err)
	}
	if exec.ID() != "e" || fmt.Sprint(seen) != "[other c  other c e]" {
		t.Errorf("%s, seen: %q", exec.ID(), seen)
	}
}

func TestCallInFlightIsUnavailableWhenTheManagerEnds(t *testing.T) {
	called, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	manager := &fakemanager.Manager{
		OnGet: taskIn("k8s.io"),
		OnKill: func(context.Context, *taskapi.KillRequest) (*emptypb.Empty, error) {
			close(called)
			<-over
			return &emptypb.Empty{}, nil
		},
	}
	g := layGround(t, manager)
	task, err := g.Get(namespaced(), "c")
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- task.Kill(namespaced(), 9, false) }()
	<-called
	g.end()
	select {
	case err := <-result:
		if !errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) {
			t.Errorf("%v", err)
		}
	case <-time.After(limit):
		t.Fatal("the call does not come back")
	}
	g.listen(t, &fakemanager.Manager{OnGet: taskIn("k8s.io")})
	again(t, func() error { return task.Kill(namespaced(), 9, false) })
}

func TestWaitLastsOverTheEndOfAManager(t *testing.T) {
	called := make(chan struct{})
	g := layGround(t, &fakemanager.Manager{
		OnGet: taskIn("k8s.io"),
		OnWait: func(ctx context.Context, _ *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
			close(called)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	task, err := g.Get(namespaced(), "c")
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		exit *runtime.Exit
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		exit, err := task.Wait(namespaced())
		result <- outcome{exit, err}
	}()
	<-called
	g.end()
	at := time.Unix(1700000000, 5)
	g.listen(t, &fakemanager.Manager{
		OnWait: func(context.Context, *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
			return &taskapi.WaitResponse{ExitStatus: 3, ExitedAt: timestamppb.New(at)}, nil
		},
	})
	select {
	case got := <-result:
		if got.err != nil || got.exit.Status != 3 || got.exit.Pid != 42 || !got.exit.Timestamp.Equal(at) {
			t.Errorf("%+v, %v", got.exit, got.err)
		}
	case <-time.After(limit):
		t.Fatal("the wait does not come back")
	}
}

func TestWaitDoesNotComeBackBecauseContainerdStops(t *testing.T) {
	called := make(chan struct{})
	g := layGround(t, &fakemanager.Manager{
		OnGet: taskIn("k8s.io"),
		OnWait: func(ctx context.Context, _ *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
			close(called)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	task, err := g.Get(namespaced(), "c")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(namespaced())
	result := make(chan error, 1)
	go func() {
		_, err := task.Wait(ctx)
		result <- err
	}()
	<-called
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-result:
		t.Fatalf("it came back with %v", err)
	case <-time.After(3 * waitAgain):
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestRuntimeInfoIsHandedOn(t *testing.T) {
	want := &types.RuntimeInfo{Name: "io.containerd.runc.v2", Annotations: map[string]string{"a": "b"}}
	g := layGround(t, &fakemanager.Manager{
		OnInfo: func(_ context.Context, r *api.InfoRequest) (*api.InfoResponse, error) {
			if r.Runtime != "/shim" {
				return nil, errdefs.ErrNotFound
			}
			info, err := proto.Marshal(want)
			return &api.InfoResponse{Info: info}, err
		},
	})
	got, err := g.PluginInfo(namespaced(), &types.RuntimeRequest{RuntimePath: "/shim"})
	if err != nil || !proto.Equal(got.(*types.RuntimeInfo), want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := g.PluginInfo(namespaced(), "something"); !errdefs.IsNotImplemented(err) {
		t.Errorf("%v", err)
	}
}
