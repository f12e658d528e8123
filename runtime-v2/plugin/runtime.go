package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/runtime"
	shims "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"

	"containerd-task-manager/plugin/api"
	"containerd-task-manager/plugin/internal/supervisor"
)

// Runtime is the task manager as containerd's services hold it.
type Runtime struct {
	managers *supervisor.Supervisor
	records  *records
	// sandboxes are the shims that containerd's own `shim` sandboxer has started, by the ids of the sandboxes they are.
	sandboxes shimFinder
	// state is the plugin's state directory: NAMESPACE/ID in it is a task's bundle.
	state string
}

// shimFinder is what is asked of containerd's shim manager, which has no shims but those.
type shimFinder interface {
	Get(ctx context.Context, id string) (shims.ShimInstance, error)
}

var _ runtime.PlatformRuntime = (*Runtime)(nil)

// ID of the plugin.
func (r *Runtime) ID() string {
	return plugins.RuntimePluginV2.String() + "." + taskID
}

// Close stops the manager when containerd stops. Containers go on.
func (r *Runtime) Close() error {
	return r.managers.Close()
}

// Create starts or joins a shim and creates a task.
func (r *Runtime) Create(ctx context.Context, id string, opts runtime.CreateOpts) (runtime.Task, error) {
	known := false
	if opts.SandboxID != "" {
		var err error
		if known, err = r.records.knowsSandbox(ctx, opts.SandboxID); err != nil {
			return nil, err
		}
	}
	if known && opts.Address == "" {
		var err error
		if opts.Address, opts.Version, err = r.sandboxEndpoint(ctx, opts.SandboxID); err != nil {
			return nil, err
		}
	}
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	fresh := !r.hasBundle(namespace, id)
	response, err := manager.Create(ctx, createRequest(id, opts, known))
	if errors.Is(err, ttrpc.ErrClosed) && fresh {
		r.undo(ctx, id)
	}
	if err != nil {
		return nil, native(err)
	}
	return r.task(response.Task), nil
}

// undoLimit is for a task that nobody wants to be killed and removed.
const undoLimit = 30 * time.Second

// undo removes the task of a creation under which the manager has ended. Its shim may have come to the end of it, and the
// next manager then takes it for a task like any other; but whoever asked for it is told that there is none.
func (r *Runtime) undo(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	for {
		err := r.remove(ctx, id)
		if err == nil || errdefs.IsNotFound(err) {
			return
		}
		// The manager that has ended may be taken for one that is up a moment longer.
		if !errdefs.IsUnavailable(err) || pause(ctx, waitAgain) != nil {
			log.G(ctx).WithError(err).WithField("id", id).Error("a task may be there that was to be undone")
			return
		}
	}
}

// remove kills a task and deletes it, or what there is of it.
func (r *Runtime) remove(ctx context.Context, id string) error {
	found, err := r.get(ctx, id)
	if err != nil {
		return err
	}
	task := r.task(found)
	if err := task.Kill(ctx, uint32(syscall.SIGKILL), true); err == nil {
		// An error is one of the deletion too.
		_, _ = task.Wait(ctx)
	}
	_, err = r.Delete(ctx, id)
	return err
}

// sandboxEndpoint is where the task API of a sandbox is that the `shim` sandboxer has started: CRI says it, other clients do
// not. It is nowhere for other sandboxers, the shims of whose sandboxes are tasks', and known to the manager.
func (r *Runtime) sandboxEndpoint(ctx context.Context, id string) (string, uint32, error) {
	shim, err := r.sandboxes.Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	address, version := shim.Endpoint()
	return address, uint32(version), nil
}

func createRequest(id string, opts runtime.CreateOpts, sandboxKnown bool) *api.CreateRequest {
	request := &api.CreateRequest{
		Id:              id,
		Spec:            typeurl.MarshalProto(opts.Spec),
		Stdin:           opts.IO.Stdin,
		Stdout:          opts.IO.Stdout,
		Stderr:          opts.IO.Stderr,
		Terminal:        opts.IO.Terminal,
		Checkpoint:      opts.Checkpoint,
		RestoreFromPath: opts.RestoreFromPath,
		Runtime:         opts.Runtime,
		RuntimeOptions:  typeurl.MarshalProto(opts.RuntimeOptions),
		TaskOptions:     typeurl.MarshalProto(opts.TaskOptions),
		SandboxId:       opts.SandboxID,
		SandboxKnown:    sandboxKnown,
		TaskApiAddress:  opts.Address,
		TaskApiVersion:  opts.Version,
	}
	for _, m := range opts.Rootfs {
		request.Rootfs = append(request.Rootfs, &api.Mount{
			Type:    m.Type,
			Source:  m.Source,
			Target:  m.Target,
			Options: m.Options,
		})
	}
	return request
}

// Get gives one task.
//
// containerd's services take any error of this for there being no such task, and CRI then takes its container for dead.
// Where it cannot be found out, as while no manager is up, a task that has a bundle is given unseen: what is asked of it
// next says what the matter is.
func (r *Runtime) Get(ctx context.Context, id string) (runtime.Task, error) {
	found, err := r.get(ctx, id)
	if err == nil {
		return r.task(found), nil
	}
	namespace, named := namespaces.Namespace(ctx)
	if errdefs.IsNotFound(err) || !named || !r.hasBundle(namespace, id) {
		return nil, err
	}
	log.G(ctx).WithError(err).WithField("id", id).Warn("a task cannot be looked at")
	return r.task(&api.Task{Namespace: namespace, Id: id}), nil
}

// hasBundle tells whether there is a task as far as the layout on disk says, which is containerd's own.
func (r *Runtime) hasBundle(namespace, id string) bool {
	_, err := os.Stat(filepath.Join(r.state, namespace, id))
	return err == nil
}

func (r *Runtime) get(ctx context.Context, id string) (*api.Task, error) {
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	response, err := manager.Manager.Get(ctx, &api.GetRequest{Id: id})
	if err != nil {
		return nil, native(err)
	}
	return response.Task, nil
}

// Tasks gives the tasks of the context's namespace, or all.
func (r *Runtime) Tasks(ctx context.Context, all bool) ([]runtime.Task, error) {
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	response, err := manager.Manager.List(ctx, &api.ListRequest{AllNamespaces: all})
	if err != nil {
		return nil, native(err)
	}
	tasks := make([]runtime.Task, 0, len(response.Tasks))
	for _, t := range response.Tasks {
		tasks = append(tasks, r.task(t))
	}
	return tasks, nil
}

// Delete deletes a task that has ended, and its shim with the last one.
func (r *Runtime) Delete(ctx context.Context, id string) (*runtime.Exit, error) {
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	response, err := manager.Manager.Delete(ctx, &api.DeleteRequest{Id: id})
	if err != nil {
		return nil, native(err)
	}
	return &runtime.Exit{
		Pid:       response.Pid,
		Status:    response.ExitStatus,
		Timestamp: protobuf.FromTimestamp(response.ExitedAt),
	}, nil
}

// PluginInfo answers containerd's introspection service: what a runtime's binary says of itself.
func (r *Runtime) PluginInfo(ctx context.Context, request any) (any, error) {
	asked, ok := request.(*types.RuntimeRequest)
	if !ok {
		return nil, fmt.Errorf("unknown request type %T: %w", request, errdefs.ErrNotImplemented)
	}
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	response, err := manager.Manager.Info(ctx, &api.InfoRequest{Runtime: asked.RuntimePath, Options: asked.Options})
	if err != nil {
		return nil, native(err)
	}
	info := &types.RuntimeInfo{}
	if err := proto.Unmarshal(response.Info, info); err != nil {
		return nil, fmt.Errorf("what %s says of itself: %w", asked.RuntimePath, err)
	}
	return info, nil
}

func (r *Runtime) task(t *api.Task) *task {
	return &task{process: process{
		managers:  r.managers,
		namespace: t.GetNamespace(),
		container: t.GetId(),
	}, pid: t.GetPid()}
}

// in is the context with the namespace that a task is in: it was given out in a context of its own.
func in(ctx context.Context, namespace string) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}
