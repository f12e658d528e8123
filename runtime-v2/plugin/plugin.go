// Package plugin puts the task manager of this project, a process of its own, into the place of containerd's built-in one.
//
// A build of containerd calls [Replace] before it runs its command. From then on everything in containerd that has to do
// with tasks, the Tasks service and CRI alike, reaches the manager through this package, which translates calls and
// decides nothing:
//
//   - [Runtime] is what containerd's services hold: create, get, list, delete.
//   - task and process are what they get from it: one call of the task service for each method.
//   - the supervisor starts the manager, starts it again when it dies, and tells it each time what is on record.
package plugin

import (
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

// taskID is the built-in plugin's id, and ours: services find the runtime by it.
const taskID = "task"

// Config is the section [plugins."io.containerd.runtime.v2.task"].
type Config struct {
	// Platforms that are supported, as the built-in plugin has it.
	Platforms []string `toml:"platforms"`
	// Binary is the task manager's executable: a path, or a name that is looked up in PATH and then beside containerd's
	// own executable.
	Binary string `toml:"binary"`
	// Address is the socket of a task manager that somebody else runs. None is started then.
	Address string `toml:"address"`
	// LogLevel of the manager; containerd's own where it is empty.
	LogLevel string `toml:"log_level"`
	// Metrics is the address, such as 127.0.0.1:9464, at which the manager serves its metrics; nowhere where it is empty.
	Metrics string `toml:"metrics"`
}

// Replace puts the task manager into the place of the built-in task plugin. To be called once, after the built-in plugins
// have registered themselves (which they do when they are imported) and before containerd's command runs.
func Replace() {
	registered := registry.Graph(func(*plugin.Registration) bool { return false })
	registry.Reset()
	for i := range registered {
		if !isTaskPlugin(&registered[i]) {
			registry.Register(&registered[i])
		}
	}
	registry.Register(registration())
}

func isTaskPlugin(r *plugin.Registration) bool {
	return r.Type == plugins.RuntimePluginV2 && r.ID == taskID
}

func registration() *plugin.Registration {
	return &plugin.Registration{
		Type: plugins.RuntimePluginV2,
		ID:   taskID,
		Requires: []plugin.Type{
			plugins.MetadataPlugin,
			// For its configuration: what shims are started with is set there. And for the shims of the `shim` sandboxer.
			plugins.ShimPlugin,
			plugins.WarningPlugin,
		},
		Config: &Config{
			Platforms: []string{platforms.DefaultString()},
			Binary:    "containerd-task-manager",
		},
		InitFn: initialize,
	}
}
