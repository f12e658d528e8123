package plugin

import (
	"context"
	"fmt"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/containerd/v2/pkg/protobuf/types"
)

// task is a container's init process and what concerns the container as a whole.
type task struct {
	process
	// pid of init as it was when the task was asked for; 0 for one that is yet to be restored from a checkpoint.
	pid uint32
}

var _ runtime.Task = (*task)(nil)

// Namespace of the container.
func (t *task) Namespace() string {
	return t.namespace
}

// PID of init.
func (t *task) PID(ctx context.Context) (uint32, error) {
	if t.pid != 0 {
		return t.pid, nil
	}
	response, err := call(ctx, &t.process, api.TTRPCTaskService.Connect, &api.ConnectRequest{ID: t.container})
	if err != nil {
		return 0, err
	}
	return response.TaskPid, nil
}

// Wait waits for the end of init.
func (t *task) Wait(ctx context.Context) (*runtime.Exit, error) {
	exit, err := t.process.Wait(ctx)
	if err != nil {
		return nil, err
	}
	exit.Pid = t.pid
	return exit, nil
}

// Pause freezes the container.
func (t *task) Pause(ctx context.Context) error {
	_, err := call(ctx, &t.process, api.TTRPCTaskService.Pause, &api.PauseRequest{ID: t.container})
	return err
}

// Resume thaws it.
func (t *task) Resume(ctx context.Context) error {
	_, err := call(ctx, &t.process, api.TTRPCTaskService.Resume, &api.ResumeRequest{ID: t.container})
	return err
}

// Exec adds a process.
func (t *task) Exec(ctx context.Context, id string, opts runtime.ExecOpts) (runtime.ExecProcess, error) {
	if err := identifiers.Validate(id); err != nil {
		return nil, fmt.Errorf("invalid exec id %s: %w", id, err)
	}
	request := &api.ExecProcessRequest{
		ID:       t.container,
		ExecID:   id,
		Stdin:    opts.IO.Stdin,
		Stdout:   opts.IO.Stdout,
		Stderr:   opts.IO.Stderr,
		Terminal: opts.IO.Terminal,
		Spec:     opts.Spec,
	}
	if _, err := call(ctx, &t.process, api.TTRPCTaskService.Exec, request); err != nil {
		return nil, err
	}
	return t.exec(id), nil
}

// Process gives an exec that exists.
func (t *task) Process(ctx context.Context, id string) (runtime.ExecProcess, error) {
	exec := t.exec(id)
	if _, err := exec.State(ctx); err != nil {
		return nil, err
	}
	return exec, nil
}

func (t *task) exec(id string) *process {
	exec := t.process
	exec.execID = id
	return &exec
}

// Pids lists the container's processes.
func (t *task) Pids(ctx context.Context) ([]runtime.ProcessInfo, error) {
	response, err := call(ctx, &t.process, api.TTRPCTaskService.Pids, &api.PidsRequest{ID: t.container})
	if err != nil {
		return nil, err
	}
	infos := make([]runtime.ProcessInfo, 0, len(response.Processes))
	for _, p := range response.Processes {
		infos = append(infos, runtime.ProcessInfo{Pid: p.Pid, Info: p.Info})
	}
	return infos, nil
}

// Checkpoint writes a checkpoint into a directory.
func (t *task) Checkpoint(ctx context.Context, path string, options *types.Any) error {
	request := &api.CheckpointTaskRequest{ID: t.container, Path: path, Options: options}
	_, err := call(ctx, &t.process, api.TTRPCTaskService.Checkpoint, request)
	return err
}

// Update sets the container's resources.
func (t *task) Update(ctx context.Context, resources *types.Any, annotations map[string]string) error {
	request := &api.UpdateTaskRequest{ID: t.container, Resources: resources, Annotations: annotations}
	_, err := call(ctx, &t.process, api.TTRPCTaskService.Update, request)
	return err
}

// Stats gives the container's metrics.
func (t *task) Stats(ctx context.Context) (*types.Any, error) {
	response, err := call(ctx, &t.process, api.TTRPCTaskService.Stats, &api.StatsRequest{ID: t.container})
	if err != nil {
		return nil, err
	}
	return response.Stats, nil
}
