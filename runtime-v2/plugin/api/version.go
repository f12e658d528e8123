// Package api is what this plugin and the task manager say to each other, generated from proto/manager/v1/manager.proto.
package api

//go:generate ./generate

// The version of the protocol that is spoken here. The manager refuses another major one.
const (
	ProtocolMajor = 1
	ProtocolMinor = 0
)
