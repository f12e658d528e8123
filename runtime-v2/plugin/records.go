package plugin

import (
	"context"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"

	"containerd-task-manager/plugin/api"
)

// records is what containerd has on record of containers and sandboxes.
type records struct {
	db         *metadata.DB
	containers containers.Store
	sandboxes  sandbox.Store
}

func newRecords(db *metadata.DB) *records {
	return &records{
		db:         db,
		containers: metadata.NewContainerStore(db),
		sandboxes:  metadata.NewSandboxStore(db),
	}
}

// all is what is on record in every namespace.
func (r *records) all(ctx context.Context) ([]*api.Container, []*api.Sandbox, error) {
	var names []string
	err := r.db.View(func(tx *bolt.Tx) (err error) {
		names, err = metadata.NewNamespaceStore(tx).List(ctx)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	var (
		allContainers []*api.Container
		allSandboxes  []*api.Sandbox
	)
	for _, name := range names {
		ctx := namespaces.WithNamespace(ctx, name)
		containers, err := r.containers.List(ctx)
		if err != nil {
			return nil, nil, err
		}
		for _, c := range containers {
			allContainers = append(allContainers, &api.Container{Namespace: name, Id: c.ID, Runtime: c.Runtime.Name})
		}
		sandboxes, err := r.sandboxes.List(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, nil, err
		}
		for _, s := range sandboxes {
			allSandboxes = append(allSandboxes, &api.Sandbox{Namespace: name, Id: s.ID})
		}
	}
	return allContainers, allSandboxes, nil
}

// knowsSandbox tells whether a sandbox is on record in the context's namespace.
func (r *records) knowsSandbox(ctx context.Context, id string) (bool, error) {
	_, err := r.sandboxes.Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
