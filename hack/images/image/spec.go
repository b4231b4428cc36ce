package image

import "fmt"

// Registry is the first part of every image's name. No such host exists: images are imported, never pulled.
const Registry = "sluice.dev"

// Tag is the tag of images built from a checkout.
const Tag = "dev"

// Spec is one image to build.
type Spec struct {
	// Name is the image's name without registry and tag, and its executable's name.
	Name string
	// Package is the main package, relative to the repository root.
	Package string
	// Executable is a static Linux executable that exists already, used instead of compiling Package.
	Executable string
	// Alias is a second absolute path of the program in the image, for callers that insist on one; empty means none.
	Alias string
	// Version is what the program reports as its version; empty leaves that of a build without one.
	Version string
}

// Reference is the image's full name.
func (s Spec) Reference() string { return Registry + "/" + s.Name + ":" + Tag }

// Specs returns all images of the repository in the order in which they are built.
func Specs() []Spec {
	return []Spec{
		Pause(),
		{Name: "sluice-operator", Package: "./cmd/operator"},
		{Name: "sluice-engine", Package: "./cmd/engine"},
		{Name: "sluice-router", Package: "./cmd/router"},
	}
}

// Pause is the image of pods' sandboxes in the dev cluster.
func Pause() Spec { return Spec{Name: "pause", Package: "./hack/images/pause"} }

// Lookup returns the image with the given name.
func Lookup(name string) (Spec, error) {
	var names []string
	for _, spec := range Specs() {
		if spec.Name == name {
			return spec, nil
		}
		names = append(names, spec.Name)
	}
	return Spec{}, fmt.Errorf("no image is called %q: choose from %v", name, names)
}
