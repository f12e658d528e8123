package plugin

import (
	"testing"

	"github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

func TestReplaceTakesThePlaceOfTheBuiltInPluginAndOfNoOther(t *testing.T) {
	all := func(*plugin.Registration) bool { return false }
	before := map[string]bool{}
	for _, r := range registry.Graph(all) {
		before[r.URI()] = true
		if isTaskPlugin(&r) {
			if _, ok := r.Config.(*v2.TaskConfig); !ok {
				t.Fatalf("the built-in one has a %T", r.Config)
			}
		}
	}
	if !before[string(plugins.RuntimePluginV2)+".task"] || !before[string(plugins.ShimPlugin)+".manager"] {
		t.Fatalf("registered: %v", before)
	}
	Replace()
	after := map[string]bool{}
	for _, r := range registry.Graph(all) {
		after[r.URI()] = true
		if _, ours := r.Config.(*Config); ours != isTaskPlugin(&r) {
			t.Errorf("%s has a %T", r.URI(), r.Config)
		}
	}
	if len(before) != len(after) {
		t.Errorf("%d plugins became %d", len(before), len(after))
	}
	for name := range before {
		if !after[name] {
			t.Errorf("%s is gone", name)
		}
	}
}
