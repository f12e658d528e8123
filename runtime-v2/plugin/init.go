package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/core/metadata"
	shims "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/deprecation"
	"github.com/containerd/containerd/v2/pkg/timeout"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/services/warning"
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/sirupsen/logrus"

	"containerd-task-manager/plugin/api"
	"containerd-task-manager/plugin/internal/supervisor"
)

// socketName is the manager's socket in containerd's state directory, beside the plugins' own directories: whatever is
// in those belongs to the layout that the built-in plugin shares.
const socketName = "task-manager.sock"

// shimManager is the id of the plugin that has the configuration of shims, and those of the `shim` sandboxer.
const shimManager = "manager"

// logSchemes are the URIs that shims take for a container's output.
var logSchemes = []string{"fifo", "binary", "binary-v2", "file"}

func initialize(ic *plugin.InitContext) (any, error) {
	config := ic.Config.(*Config)
	supported, err := platforms.ParseAll(config.Platforms)
	if err != nil {
		return nil, err
	}
	ic.Meta.Platforms = supported
	if ic.Meta.Exports == nil {
		ic.Meta.Exports = map[string]string{}
	}
	ic.Meta.Exports["log-uri-schemes"] = strings.Join(logSchemes, ",")

	metadataPlugin, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return nil, err
	}
	records := newRecords(metadataPlugin.(*metadata.DB))
	surroundings, err := surroundingsOf(ic)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{surroundings.Root, surroundings.State} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, err
		}
	}
	if err := warn(ic); err != nil {
		return nil, err
	}

	sandboxes, err := ic.GetByID(plugins.ShimPlugin, shimManager)
	if err != nil {
		return nil, err
	}

	load := func(ctx context.Context) (*api.LoadRequest, error) {
		containers, sandboxes, err := records.all(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading what is on record: %w", err)
		}
		return loadRequest(surroundings, containers, sandboxes), nil
	}
	managers, err := supervisor.Start(ic.Context, launcher(config, surroundings.State), load)
	if err != nil {
		return nil, fmt.Errorf("the task manager: %w", err)
	}
	return &Runtime{
		managers:  managers,
		records:   records,
		sandboxes: sandboxes.(*shims.ShimManager),
		state:     surroundings.State,
	}, nil
}

// launcher is how the configuration says that a manager is come by.
func launcher(config *Config, state string) supervisor.Launcher {
	if config.Address != "" {
		return supervisor.Socket{Address: config.Address}
	}
	level := config.LogLevel
	if level == "" {
		level = log.GetLevel().String()
	}
	return supervisor.Command{
		Binary:    config.Binary,
		Address:   filepath.Join(filepath.Dir(state), socketName),
		LogLevel:  managerLevel(level),
		LogFormat: logFormat(),
		Metrics:   config.Metrics,
	}
}

// managerLevel is a level's name as the manager knows it: containerd has two that are above its highest.
func managerLevel(level string) string {
	switch level {
	case "warning":
		return "warn"
	case "fatal", "panic":
		return "error"
	}
	return level
}

func logFormat() string {
	if _, ok := log.L.Logger.Formatter.(*logrus.JSONFormatter); ok {
		return "json"
	}
	return "text"
}

// surroundingsOf is all of a load request that stays the same as long as containerd runs.
func surroundingsOf(ic *plugin.InitContext) (*api.LoadRequest, error) {
	// A shim publishes through this executable if it cannot do so over ttrpc, which is asked of no shim since 1.7.
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	timeouts := map[string]int64{}
	for name, limit := range timeout.All() {
		timeouts[name] = int64(limit)
	}
	request := &api.LoadRequest{
		ProtocolMajor:     api.ProtocolMajor,
		ProtocolMinor:     api.ProtocolMinor,
		State:             ic.Properties[plugins.PropertyStateDir],
		Root:              ic.Properties[plugins.PropertyRootDir],
		GrpcAddress:       ic.Properties[plugins.PropertyGRPCAddress],
		TtrpcAddress:      ic.Properties[plugins.PropertyTTRPCAddress],
		ContainerdBinary:  binary,
		ContainerdVersion: version.Version,
		Timeouts:          timeouts,
		Debug:             log.GetLevel() >= log.DebugLevel,
	}
	// The plugin's configuration has the directory that it settled on.
	if p := ic.Plugins().Get(plugins.ShimPlugin, shimManager); p != nil {
		if config, ok := p.Config.(*shims.ShimConfig); ok {
			request.SocketDir = config.SocketDir
			request.ShimEnv = config.Env
		}
	}
	return request, nil
}

func loadRequest(surroundings *api.LoadRequest, containers []*api.Container, sandboxes []*api.Sandbox) *api.LoadRequest {
	return &api.LoadRequest{
		ProtocolMajor:     surroundings.ProtocolMajor,
		ProtocolMinor:     surroundings.ProtocolMinor,
		State:             surroundings.State,
		Root:              surroundings.Root,
		GrpcAddress:       surroundings.GrpcAddress,
		TtrpcAddress:      surroundings.TtrpcAddress,
		ContainerdBinary:  surroundings.ContainerdBinary,
		ContainerdVersion: surroundings.ContainerdVersion,
		SocketDir:         surroundings.SocketDir,
		ShimEnv:           surroundings.ShimEnv,
		Timeouts:          surroundings.Timeouts,
		Debug:             surroundings.Debug,
		Containers:        containers,
		Sandboxes:         sandboxes,
	}
}

// warn tells the operator what the built-in plugin tells.
func warn(ic *plugin.InitContext) error {
	warnings, err := ic.GetSingle(plugins.WarningPlugin)
	if err != nil {
		return err
	}
	if cgroups.Mode() != cgroups.Unified {
		warnings.(warning.Service).Emit(ic.Context, deprecation.CgroupV1)
	}
	return nil
}
