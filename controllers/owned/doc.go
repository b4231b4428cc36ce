// Package owned writes the objects that a resource of ours owns, and only those.
//
// It owns the rule when an object is written: when it does not exist, when it was made from something else than what is
// wanted now (a hash in an annotation tells), or when somebody changed a field that we set. It never touches an object
// of the same name that another owner has: that is a NotOwnedError, or a LeftoverError where the other goes by
// itself. It also owns which errors only need time (Wait). It must not know what the objects mean.
//
// The inferenceservice and enginepool controllers and the monitors' applier call it.
package owned
